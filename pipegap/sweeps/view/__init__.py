"""What people see of a sweep while it runs."""
