"""Moments E[T(y) S_m(x)], and the directions that they give."""
