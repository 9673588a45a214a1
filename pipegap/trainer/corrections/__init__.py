"""What is done about delay: one small class per file, the do-nothing one among them."""
