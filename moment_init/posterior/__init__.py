"""Posteriors: sampling, initial values, alignment of components, stores of draws."""
