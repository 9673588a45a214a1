"""A GPU that is not there: the real trainer on `cuda`, with tensors that have no numbers.

`child.py` runs trials on it, in a process that loaded `device.cpp` before torch. A test asks for
them by `questions.py`.
"""
