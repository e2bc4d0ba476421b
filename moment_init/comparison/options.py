"""Arguments of a comparison beside the data, and how they are checked."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from moment_init.comparison.nuts_chains import NutsSettings

__all__ = ["CompareOptions", "validate_options"]

_DIRECTIONS = ("anchored", "fixed", "free")

_OWN_ARGUMENTS = (
    "init",
    "log_likelihood",
    "method",
    "model",
    "posterior_predictive",
    "return_inferencedata",
    "store",
    "trace",
    "var_names",
)
"""Arguments of `sample` and `pymc.sample` that a comparison sets itself or cannot do without."""


@dataclass(frozen=True, slots=True, eq=False)
class CompareOptions:
    """What to compare, and how.

    Parameters
    ----------
    n_starts : int
        Number of random starts.
    held_out : float
        Share of the rows, or groups, that is held out.
    include_default_nuts : bool
        Whether to sample from PyMC's own start, too.
    n_jobs : int or None
        Random starts that run at once.
    progressbar : bool
        Whether to show progress.
    nuts : NutsSettings
        How to sample.
    """

    n_starts: int
    held_out: float
    include_default_nuts: bool
    n_jobs: int | None
    progressbar: bool
    nuts: NutsSettings


def validate_options(
    *,
    n_starts: Any,
    held_out: Any,
    include_default_nuts: Any,
    directions: Any,
    priors: Any,
    draws: Any,
    tune: Any,
    chains: Any,
    n_jobs: Any,
    progressbar: Any,
    pm_sample: Mapping[str, Any],
) -> CompareOptions:
    """Check the options of a comparison.

    Parameters
    ----------
    n_starts, held_out, include_default_nuts, directions, priors, draws, tune, chains : object
        As for `compare`.
    n_jobs, progressbar : object
        As for `compare`.
    pm_sample : mapping of str to object
        Further arguments of `pymc.sample`.

    Returns
    -------
    CompareOptions
        The options.

    Raises
    ------
    TypeError
        For arguments of a sampler that a comparison sets itself, and priors that are no mapping.
    ValueError
        For numbers out of range and unknown words.
    """
    for name, value in {"n_starts": n_starts, "draws": draws, "chains": chains}.items():
        _require_whole(name, value, 1)
    if tune is not None:
        _require_whole("tune", tune, 0)
    if n_jobs is not None and (not _is_whole(n_jobs) or n_jobs == 0):
        raise ValueError(
            f"`n_jobs` must be a whole number other than 0, or None; got {n_jobs!r}. Use -1 for "
            "all cores."
        )
    if directions not in _DIRECTIONS:
        raise ValueError(
            f"`directions` must be one of {', '.join(map(repr, _DIRECTIONS))}; got {directions!r}. "
            "Choose one of these."
        )
    if priors is not None and not isinstance(priors, Mapping):
        raise TypeError(
            "`priors` must be a mapping of names to priors, or None; got "
            f"{type(priors).__name__}. Pass a dict, see `moment_init.models.mixture_glm`."
        )
    refused = sorted(set(_OWN_ARGUMENTS) & set(pm_sample))
    if refused:
        raise TypeError(
            "`compare` takes all arguments of pymc.sample but those it sets itself; got "
            f"{', '.join(refused)}. Leave them out, or call `moment_init.sample`."
        )
    # PyMC logs what it samples even without a bar.
    silent = {} if progressbar else {"quiet": True}
    arguments = {"progressbar": bool(progressbar), **silent, **pm_sample}
    nuts = NutsSettings(
        directions,
        None if priors is None else dict(priors),
        int(draws),
        None if tune is None else int(tune),
        int(chains),
        arguments,
    )
    return CompareOptions(
        int(n_starts),
        _checked_share(held_out),
        _checked_flag(include_default_nuts),
        None if n_jobs is None else int(n_jobs),
        bool(progressbar),
        nuts,
    )


def _checked_share(held_out: Any) -> float:
    is_number = isinstance(held_out, int | float | np.integer | np.floating)
    if not is_number or isinstance(held_out, bool) or not 0.0 <= held_out < 1.0:
        raise ValueError(
            "`held_out` must be a share of the rows from 0 to less than 1; got "
            f"{held_out!r}. Use 0.2 for a fifth, or 0 to fit all rows."
        )
    return float(held_out)


def _checked_flag(value: Any) -> bool:
    if not isinstance(value, bool | np.bool_):
        raise TypeError(
            f"`include_default_nuts` must be True or False; got {value!r}. Pass one of these."
        )
    return bool(value)


def _require_whole(name: str, value: Any, smallest: int) -> None:
    if not _is_whole(value) or value < smallest:
        raise ValueError(
            f"`{name}` must be a whole number, {smallest} or more; got {value!r}. Change it."
        )


def _is_whole(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)
