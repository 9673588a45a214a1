"""Models that split themselves into stages."""
