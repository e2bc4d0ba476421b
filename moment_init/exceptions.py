"""Errors and warnings that a caller may want to catch."""

__all__ = ["ConvergenceWarning", "IdentifiabilityError", "WeakSignalWarning"]


class ConvergenceWarning(UserWarning):
    """A search ended before it converged: the log-likelihood may still rise."""


class IdentifiabilityError(ValueError):
    """The requested model cannot be identified from the moments that were asked for."""


class WeakSignalWarning(UserWarning):
    """The estimate is not clearly distinguishable from noise."""
