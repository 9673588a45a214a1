"""What every rank did when: measured, written as a trace, drawn."""
