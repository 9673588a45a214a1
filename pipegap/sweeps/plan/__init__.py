"""What is left to run and what it will cost: tuning, early stop, price, precision, the record."""
