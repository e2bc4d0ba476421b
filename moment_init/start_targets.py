"""What a start is for: a model in PyMC, NumPyro or Stan, or names alone."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, get_args

import numpy as np
from numpy.typing import NDArray

from moment_init.model_variables import ModelVariable, StartCheck, free_variables
from moment_init.numpyro_sites import SiteCheck, read_sites
from moment_init.stan_parameters import ParameterCheck, read_parameters
from moment_init.start_values import StartValues

if TYPE_CHECKING:
    import pymc

__all__ = ["Backend", "StartTarget", "validate_target"]

FloatArray = NDArray[np.float64]
Backend = Literal["pymc", "numpyro", "stan"]
Sources = Mapping[str, str | Callable[[Any], Any] | None]


class SupportCheck(Protocol):
    """Whether values lie inside of the support of a model's variables."""

    def complaint(self, values: Mapping[str, FloatArray]) -> str | None:
        """Say what is wrong with values.

        Parameters
        ----------
        values : mapping of str to numpy.ndarray
            Values of the variables, on their constrained scales.

        Returns
        -------
        str or None
            The first complaint; None if there is none.
        """


@dataclass(frozen=True, slots=True, eq=False)
class StartTarget:
    """A model that is to be started, or names alone.

    Parameters
    ----------
    backend : {"pymc", "numpyro", "stan"}
        Whose model it is.
    model : object or None
        The model; None if only names are known.
    """

    backend: Backend
    model: Any

    def variables(self, start: StartValues, mapping: Sources) -> dict[str, ModelVariable]:
        """Read the free variables of the model.

        Parameters
        ----------
        start : StartValues
            The estimate, which says how long the axes of a Stan program are.
        mapping : mapping of str to str, callable or None
            What the variables are.

        Returns
        -------
        dict of str to ModelVariable
            Variables by name, in the model's order; none without a model.
        """
        if self.model is None:
            return {}
        if self.backend == "pymc":
            return free_variables(self.model)
        if self.backend == "numpyro":
            return read_sites(self.model)[0]
        return read_parameters(self.model, start, mapping)[0]

    def why_not_free(self, name: str) -> str:
        """Say why a name is not that of a free variable.

        Parameters
        ----------
        name : str
            The name.

        Returns
        -------
        str
            The reason, to follow the name.
        """
        if self.backend == "pymc":
            others = _other_variables(self.model)
        elif self.backend == "numpyro":
            others = read_sites(self.model)[1]
        else:
            others = read_parameters(self.model, None, {})[1]
        return others.get(name, "is not in the model")

    def check(self, used: Mapping[str, ModelVariable]) -> SupportCheck | None:
        """Make the check of values.

        Parameters
        ----------
        used : mapping of str to ModelVariable
            The variables that get values.

        Returns
        -------
        SupportCheck or None
            The check; None without a model.
        """
        if self.model is None:
            return None
        if self.backend == "pymc":
            return StartCheck(self.model, used)
        if self.backend == "numpyro":
            return SiteCheck(self.model)
        return ParameterCheck(self.model)

    def deliver(self, values: Mapping[str, FloatArray]) -> dict[str, Any]:
        """Bring values into the form that the backend takes.

        Parameters
        ----------
        values : mapping of str to numpy.ndarray
            Values of the variables.

        Returns
        -------
        dict of str to numpy.ndarray, float or list
            Arrays; for Stan numbers and nested lists, which JSON can hold.
        """
        if self.backend == "stan":
            return {name: np.asarray(value).tolist() for name, value in values.items()}
        return dict(values)


def validate_target(model: Any, backend: Any) -> StartTarget:
    """Check the model and its backend.

    Parameters
    ----------
    model : object or None
        What the user gave as the model.
    backend : str
        What the user gave as the backend.

    Returns
    -------
    StartTarget
        The target.

    Raises
    ------
    TypeError
        If the model is not one of the backend.
    ValueError
        If there is no such backend.
    """
    backends = get_args(Backend)
    if backend not in backends:
        raise ValueError(
            f"`backend` must be one of {', '.join(map(repr, backends))}; got {backend!r}."
        )
    if model is None:
        return StartTarget(backend, None)
    got = type(model).__name__
    if backend == "pymc" and not hasattr(model, "free_RVs"):
        raise TypeError(
            f"`model` must be a pymc.Model or None; got {got}. Say backend='numpyro' or 'stan' for "
            "a model of these."
        )
    if backend == "numpyro" and not callable(model):
        raise TypeError(
            f"`model` must be a NumPyro model as a function without arguments; got {got}. Bind the "
            "data: functools.partial(model, X, y)."
        )
    is_program = isinstance(model, str) or hasattr(model, "code") or hasattr(model, "read_text")
    if backend == "stan" and not is_program:
        raise TypeError(
            f"`model` must be a Stan program: its text, its path or a CmdStanModel; got {got}."
        )
    return StartTarget(backend, model)


def _other_variables(model: "pymc.Model") -> dict[str, str]:
    """Variables of a PyMC model that have no initial value, and why."""
    kinds = {
        "is data": model.data_vars,
        "is deterministic, computed from others": model.deterministics,
        "is observed": model.observed_RVs,
    }
    return {item.name: reason for reason, group in kinds.items() for item in group}
