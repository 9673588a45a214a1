"""How figures look: charts of the tables."""
