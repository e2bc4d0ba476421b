"""Runnable stories on real and simulated data; not installed with the package."""
