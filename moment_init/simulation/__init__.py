"""Simulated mixtures of generalized linear models, with the truth beside the data."""

from moment_init.simulation.mixture import MixtureData, simulate_mixture

__all__ = ["MixtureData", "simulate_mixture"]
