"""Families of responses: links, log densities with derivatives, and response functions T_k."""
