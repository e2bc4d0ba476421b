"""Logistic mixtures on inputs that are not Gaussian."""
