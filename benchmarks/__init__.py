"""Benchmarks of the package beside its peers: ``python -m benchmarks [name ...] [--quick]``."""
