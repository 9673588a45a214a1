"""What figures show: tables, each of which becomes a CSV beside its figure."""
