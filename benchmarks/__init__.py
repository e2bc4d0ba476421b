"""Benchmarks of the package and its peers: ``python -m benchmarks [name ...] [--quick]``."""
