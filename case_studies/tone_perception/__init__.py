"""Tone perception: two lines in one covariate, without moments."""
