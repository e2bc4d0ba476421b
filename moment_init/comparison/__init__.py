"""Comparison of fits and posteriors from several kinds of starts."""
