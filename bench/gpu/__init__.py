"""What a GPU makes of pipegap, measured by one command."""
