"""Rows: checking, blocks, standardising, discrete columns, formulas, simulation."""
