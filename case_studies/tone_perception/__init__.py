"""Tone perception: two lines in one covariate, where moments cannot help."""
