"""Rows of data: checks, blocks, standardising, discrete columns, formulas and simulation."""
