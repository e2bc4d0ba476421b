"""Checks, pages and notebooks: what the Makefile runs."""
