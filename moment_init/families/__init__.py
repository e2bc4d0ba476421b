"""Response families as data: density, sampler, range, derivatives, response functions, moments."""

from moment_init.families.base import Family
from moment_init.families.registry import FAMILIES, family_of_response, get_family

__all__ = ["FAMILIES", "Family", "family_of_response", "get_family"]
