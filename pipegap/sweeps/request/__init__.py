"""What is asked for: words of a command line and sweep files, and the trials they expand to."""
