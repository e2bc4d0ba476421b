"""Directions of a mixture as features of a linear classifier."""
