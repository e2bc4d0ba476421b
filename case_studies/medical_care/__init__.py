"""Demand for medical care: how many kinds of patients, and what influences each of them."""
