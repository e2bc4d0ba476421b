"""Rows that are not in memory: columns of them, read block by block, by Dask where it is used.

Nothing here imports Dask before a Dask collection comes in.
"""
