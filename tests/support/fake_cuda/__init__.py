"""A GPU that is not there: the real trainer on `cuda`, with tensors that have no numbers.

`child.py` runs trials on it, in a process that loaded `device.cpp` before torch; by `questions.py` a
test asks for them.
"""
