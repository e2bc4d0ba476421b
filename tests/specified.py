"""Specifications of unchecked rows."""

from typing import Any

from moment_init.data.checking import validate_data
from moment_init.models.specification import Specification, specify


def specify_rows(
    X: Any, y: Any, n_components: int, *, data_block: dict[str, Any], gating: Any, **options: Any
) -> Specification:
    """Check rows, then specify a model of them."""
    data = validate_data(X, y, gating=gating, **data_block)
    return specify(data, n_components, **options)
