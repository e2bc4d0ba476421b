"""Functions of several responses at once: each gives moments with the same directions.

Where all predictors of a component have one direction u_j, the mean of any function of all
responses depends on x through <u_j, x> alone, so that its moments are slices of one tensor with one
U: the functions of every single response, and products of functions of two.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from moment_init.families.response_functions import ResponseFunctions
from moment_init.responses.data import ResponsesData
from moment_init.responses.kinds import ResponseKind

__all__ = ["JointFunctions", "fit_joint_functions", "moment_responses"]

FloatArray = NDArray[np.float64]

MOST_PRODUCTS = 15
"""Products of pairs of responses that are used: those of six responses. More functions add their
noise to every direction."""


@dataclass(frozen=True, slots=True, eq=False)
class JointFunctions:
    """Functions of all responses.

    Parameters
    ----------
    parts : tuple of ResponseFunctions
        Functions of each response; empty for classes.
    n_classes : int
        Number of classes of a categorical response, else zero: its functions are the indicators of
        all classes but the first.
    pairs : tuple of (int, int)
        Responses whose first functions are multiplied.
    """

    parts: tuple[ResponseFunctions, ...]
    n_classes: int
    pairs: tuple[tuple[int, int], ...]

    @property
    def columns(self) -> tuple[int, ...]:
        """One entry for each function."""
        n_single = sum(len(part.columns) for part in self.parts)
        return tuple(range(n_single + max(0, self.n_classes - 1) + len(self.pairs)))

    def __call__(self, y: FloatArray, /) -> FloatArray:
        """Evaluate the functions.

        Parameters
        ----------
        y : numpy.ndarray, shape (n_obs, n_responses)
            Responses as `moment_responses` gives them.

        Returns
        -------
        numpy.ndarray, shape (n_obs, n_functions)
            One column for each function.
        """
        if self.n_classes:
            indicators = [y[:, 0] == index for index in range(1, self.n_classes)]
            return np.array(indicators, dtype=np.float64).T
        values = [part(y[:, index]) for index, part in enumerate(self.parts)]
        products = [values[a][:, 0] * values[b][:, 0] for a, b in self.pairs]
        return np.concatenate(
            [each.T for each in values] + [np.array(products).reshape(-1, len(y))]
        ).T


def fit_joint_functions(kind: ResponseKind, response: FloatArray) -> JointFunctions:
    """Settle the functions of all responses.

    Parameters
    ----------
    kind : ResponseKind
        What the responses are.
    response : numpy.ndarray, shape (n_obs, n_responses)
        Responses as `moment_responses` gives them.

    Returns
    -------
    JointFunctions
        The functions.
    """
    families = [family for family in kind.families if family is not None]
    if not families:
        return JointFunctions((), kind.n_predictors + 1, ())
    parts = tuple(
        family.fit_response_functions(response[:, index]) for index, family in enumerate(families)
    )
    number = len(families)
    pairs = [(a, b) for a in range(number) for b in range(a + 1, number)]
    return JointFunctions(parts, 0, tuple(pairs[:MOST_PRODUCTS]))


def moment_responses(data: ResponsesData) -> FloatArray:
    """Responses without offsets and trials, standardised where they have units.

    Parameters
    ----------
    data : ResponsesData
        Checked rows.

    Returns
    -------
    numpy.ndarray, shape (n_obs, n_responses)
        The responses.
    """
    columns = []
    shares = data.sample_weight / data.sample_weight.sum()
    for index in range(len(data.y)):
        family = data.kind.families[index]
        if family is None:
            return data.y.T.copy()
        single = data.single(index)
        response = family.moment_response(
            single.y, order=1, offset=single.offset, n_trials=single.n_trials
        )
        if family.response_power:
            response = response - shares @ response
            response /= np.sqrt(shares @ np.square(response))
        columns.append(response)
    return np.column_stack(columns)
