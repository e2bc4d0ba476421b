"""A logistic mixture, simulated and estimated."""
