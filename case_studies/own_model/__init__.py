"""A start for a model of your own."""
