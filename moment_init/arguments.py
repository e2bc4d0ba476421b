"""Arguments that every entry point takes beside the data: the number of components and the seed."""

from collections.abc import Sequence
from typing import Any

import numpy as np

__all__ = ["RandomSeed", "make_generator", "validate_n_components", "validate_run"]

RandomSeed = int | Sequence[int] | np.random.Generator | None


def validate_n_components(n_components: Any, n_obs: int) -> int:
    """Check the number of components.

    Parameters
    ----------
    n_components : int
        Number of components asked for.
    n_obs : int
        Number of rows.

    Returns
    -------
    int
        The number.

    Raises
    ------
    TypeError
        If it is not an integer.
    ValueError
        If it is smaller than 1 or larger than the number of rows.
    """
    if isinstance(n_components, bool | np.bool_) or not isinstance(n_components, int | np.integer):
        raise TypeError(
            f"`n_components` must be an integer; got {n_components!r} "
            f"of type {type(n_components).__name__}."
        )
    if not 1 <= n_components <= n_obs:
        raise ValueError(
            f"`n_components` must be between 1 and the number of rows ({n_obs}); "
            f"got {n_components}. Use a smaller positive number."
        )
    return int(n_components)


def validate_run(draws: Any, tune: Any, chains: Any) -> None:
    """Check how long a run of a sampler is to be.

    Parameters
    ----------
    draws : int
        Draws of each chain, positive.
    tune : int or None
        Draws that tune the sampler; None for the sampler's default.
    chains : int
        Number of chains, positive.

    Raises
    ------
    ValueError
        Naming the argument that is wrong.
    """
    for name, value in {"draws": draws, "chains": chains}.items():
        _require_integer(name, value, 1)
    if tune is not None:
        _require_integer("tune", tune, 0)


def _require_integer(name: str, value: Any, smallest: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < smallest:
        kind = "positive" if smallest else "non-negative"
        raise ValueError(f"`{name}` must be a {kind} integer; got {value!r}.")


def make_generator(random_seed: RandomSeed) -> np.random.Generator:
    """Turn a seed into a generator, once, at the entry point.

    Parameters
    ----------
    random_seed : int, sequence of int, numpy.random.Generator or None
        The seed.

    Returns
    -------
    numpy.random.Generator
        The generator; the same object where one was given.

    Raises
    ------
    ValueError
        For a seed that NumPy does not accept.
    """
    try:
        if isinstance(random_seed, np.random.RandomState):
            raise TypeError("a legacy generator cannot be spawned")
        return np.random.default_rng(random_seed)
    except (TypeError, ValueError) as error:
        raise ValueError(
            "`random_seed` must be a non-negative integer, a sequence of them, a "
            f"numpy.random.Generator or None; got {random_seed!r}."
        ) from error
