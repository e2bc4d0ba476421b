"""Families of responses: links, log densities and derivatives, response functions T_k."""
