"""Likelihood of a mixture: parameters, sums over rows, and the climb to a maximum."""
