"""What every part of the trainer stands on."""
