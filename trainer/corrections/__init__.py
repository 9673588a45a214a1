"""What is done about delay: one small class a file, the do-nothing one among them."""
