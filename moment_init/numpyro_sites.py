"""Sites of a NumPyro model: its free variables, and whether values lie in their support.

NumPyro is imported when a model of it is read: it is there already if somebody has one.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moment_init.model_variables import ModelVariable

__all__ = ["SiteCheck", "read_sites"]

FloatArray = NDArray[np.float64]


def read_sites(model: Callable[[], Any]) -> tuple[dict[str, ModelVariable], dict[str, str]]:
    """Run a model once and note its sites.

    Parameters
    ----------
    model : callable
        The model, its data bound.

    Returns
    -------
    variables : dict of str to ModelVariable
        Latent sites by name, in the model's order. Plates give names to axes.
    others : dict of str to str
        Names of all other sites, and why they have no initial value.

    Raises
    ------
    TypeError
        If the model needs arguments.
    """
    variables, others = {}, {}
    for name, site in _trace(model, {}).items():
        if site["type"] == "sample" and not site["is_observed"]:
            variables[name] = _variable(name, site)
        elif site["type"] == "sample":
            others[name] = "is observed"
        else:
            others[name] = f"is a site of type {site['type']!r}"
    return variables, others


class SiteCheck:
    """Whether values lie inside of the support of a NumPyro model's sites.

    Parameters
    ----------
    model : callable
        The model, its data bound.
    """

    def __init__(self, model: Callable[[], Any]) -> None:
        self._model = model

    def complaint(self, values: Mapping[str, FloatArray]) -> str | None:
        """Say what is wrong with values.

        Parameters
        ----------
        values : mapping of str to numpy.ndarray
            Values of the sites, on their constrained scales.

        Returns
        -------
        str or None
            The first complaint; None if there is none. The model is run with the values, so that
            each site has the prior that those above it give.
        """
        sites = _trace(self._model, values)
        for name, value in values.items():
            prior = sites[name]["fn"]
            if not np.all(prior.support(value)):
                rule = f"in the support of its prior, {_base(prior.support)}"
            elif not np.all(np.isfinite(prior.log_prob(value))):
                rule = "where its prior density is not zero"
            else:
                continue
            shown = np.array2string(value, precision=4, threshold=12, separator=", ")
            return f"the model's site {name!r} must start {rule}; got {shown}".replace("\n", "")
        return None


def _trace(model: Callable[[], Any], values: Mapping[str, FloatArray]) -> dict[str, Any]:
    """Sites of one run, in which some have given values."""
    from numpyro import handlers

    seeded = handlers.substitute(handlers.seed(model, rng_seed=0), data=dict(values))
    return dict(handlers.trace(partial(_run, seeded)).get_trace())


def _run(model: Callable[[], Any]) -> None:
    try:
        model()
    except TypeError as error:
        if "argument" not in str(error):
            raise
        raise TypeError(
            f"`model` must be a NumPyro model as a function without arguments: {error}. Bind the "
            "data: functools.partial(model, X, y)."
        ) from error


def _variable(name: str, site: Mapping[str, Any]) -> ModelVariable:
    value, prior = np.asarray(site["value"]), site["fn"]
    dims: list[str | None] = [None] * value.ndim
    for plate in site["cond_indep_stack"]:
        dims[value.ndim - prior.event_dim + plate.dim] = plate.name
    support = _base(prior.support)
    return ModelVariable(
        name, value.shape, tuple(dims), ((),) * value.ndim,
        np.dtype(np.int64) if prior.is_discrete else np.dtype(np.float64), str(support), name,
        1 if "ordered" in type(support).__name__.lower() else 0, is_labelled=False,
    )  # fmt: skip


def _base(support: Any) -> Any:
    """A constraint without what makes one event of independent ones."""
    return getattr(support, "base_constraint", support)
