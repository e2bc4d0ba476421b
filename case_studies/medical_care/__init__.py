"""Demand for medical care: how many kinds of patients, and what moves each of them."""
