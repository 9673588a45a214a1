"""Benchmarks against peers and limits; bench/README.md has their figures."""
