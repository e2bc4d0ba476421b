"""Rows that Dask holds."""
