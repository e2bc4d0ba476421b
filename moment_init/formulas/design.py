"""What a formula made of its data, and how it encodes new rows."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from moment_init.formulas.encoding import FormulaPart
from moment_init.formulas.variables import Scope, require_frame, select_columns

if TYPE_CHECKING:
    import pandas

__all__ = ["ROW_ARGUMENTS", "FormulaDesign"]

FloatArray = NDArray[np.float64]

ROW_ARGUMENTS = ("offset", "n_trials", "sample_weight")
"""Arguments with a number for each row, which may name a column or be an expression of columns."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class FormulaDesign:
    """A formula that was read together with a DataFrame; it encodes new rows in the same way.

    Levels of categories, knots of splines, centres and scales are those of the first data. It can
    be pickled and copied.

    Parameters
    ----------
    formula : str
        The formula.
    response : FormulaPart
        What is left of the tilde.
    features : FormulaPart
        What is right of it.
    gate : FormulaPart or None
        What is right of the bar; None without a gate.
    row_parts : dict of str to FormulaPart
        `offset`, `n_trials` and `sample_weight`, where they were given as columns or expressions.
    groups : str or None
        Column of the groups, where they were given by name.
    scope : Scope
        Functions and constants of the caller that the formula uses.
    has_classes : bool, default False
        Whether the response is a label of one of several classes.
    """

    formula: str
    response: FormulaPart
    features: FormulaPart
    gate: FormulaPart | None = None
    row_parts: dict[str, FormulaPart] = field(default_factory=dict)
    groups: str | None = None
    scope: Scope = field(default_factory=Scope)
    has_classes: bool = False

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Names of the columns of X."""
        return self.features.names

    @property
    def gate_names(self) -> tuple[str, ...]:
        """Names of the gating covariates; empty without a gate."""
        return () if self.gate is None else self.gate.names

    @property
    def response_levels(self) -> tuple[Any, Any] | None:
        """The two labels of the response that count as 0 and 1; None for numbers and classes."""
        levels = next(iter(self.response.levels.values()), None)
        return None if levels is None or self.has_classes else (levels[0], levels[1])

    @property
    def has_several_responses(self) -> bool:
        """Whether there is more than one column of numbers left of the tilde."""
        return not self.response.levels and len(self.response.names) > 1

    @property
    def attributes(self) -> dict[str, str]:
        """What a DataTree keeps of the formula, as text."""
        named = {name: str(part.spec.formula) for name, part in self.row_parts.items()}
        named |= {} if self.groups is None else {"groups": self.groups}
        result = {"formula": self.formula}
        result |= {f"formula_{name}": text for name, text in named.items()}
        if self.response_levels is not None:
            result["response_levels"] = ", ".join(
                f"{label} = {number}" for number, label in enumerate(self.response_levels)
            )
        return result

    def columns_of(self, term: str) -> tuple[str, ...]:
        """Names of the columns of X that a term stands for.

        Parameters
        ----------
        term : str
            A term as the formula has it, such as ``"gender"`` or ``"poly(age, 2)"``.

        Returns
        -------
        tuple of str
            The columns; the given name alone if it is no term.
        """
        return self.features.columns_by_term.get(term, (term,))

    def encode_features(self, data: "pandas.DataFrame", argument: str = "X") -> "pandas.DataFrame":
        """Encode the inputs of rows.

        Parameters
        ----------
        data : pandas.DataFrame
            Rows with the columns that the formula names.
        argument : str, default "X"
            What the caller calls the data, for the messages.

        Returns
        -------
        pandas.DataFrame
            A column for each of `feature_names`.
        """
        return self.features.encode(data, self.scope, argument)

    def encode_response(self, data: "pandas.DataFrame", argument: str = "X") -> Any:
        """Encode the response of rows.

        Parameters
        ----------
        data : pandas.DataFrame
            Rows with the columns left of the tilde.
        argument : str, default "X"
            What the caller calls the data, for the messages.

        Returns
        -------
        numpy.ndarray, shape (n_obs,), or pandas.DataFrame, shape (n_obs, n_responses)
            Numbers; 1 for the second of two levels, 0 for the first. Labels of classes; a column
            for each of several responses.
        """
        missing = [name for name in self.response.variables if name not in data.columns]
        if missing:
            raise ValueError(
                f"`{argument}` must have the response, if `y` is not given; missing are "
                f"{', '.join(map(repr, missing))}. Add them, or pass `y`."
            )
        is_column = self.response.levels or self.response.names == self.response.variables
        if self.has_classes and is_column:
            name = self.response.variables[0]  # as it is, not as numbers
            return select_columns(data, [name], argument)[name].to_numpy()
        encoded = self.response.encode(data, self.scope, argument)
        return encoded if self.has_several_responses else np.asarray(encoded.to_numpy()[:, -1])

    def rows(self, data: "pandas.DataFrame", *, has_response: bool = True) -> dict[str, Any]:
        """Encode rows into the arguments of functions that take X and y.

        Parameters
        ----------
        data : pandas.DataFrame
            Rows with the columns that the formula names, and those given as `offset`, `groups`, ...
        has_response : bool, default True
            Whether the rows have a response.

        Returns
        -------
        dict of str to object
            `X`, `y` and, where the formula or the call had them, `gating`, `offset`, `n_trials`,
            `sample_weight`, `groups`.

        Raises
        ------
        TypeError
            If `data` is no DataFrame, and for terms that are not real numbers.
        ValueError
            For missing columns and values, and levels that the first data did not have.

        Examples
        --------
        .. code-block:: python

            design = read_formula("visits ~ age + gender", frame)
            predict_membership(tree, **design.rows(new_frame))
        """
        require_frame(data, "data")
        result: dict[str, Any] = {"X": self.encode_features(data, "data")}
        if has_response:
            result["y"] = self.encode_response(data, "data")
        for name in ("gating", *ROW_ARGUMENTS, "groups"):
            values = self.encode_argument(name, data, "data")
            if values is not None:
                result[name] = values
        return result

    def encode_argument(self, name: str, data: "pandas.DataFrame", argument: str = "X") -> Any:
        """Encode one more argument of rows, by what it was when the formula was read.

        Parameters
        ----------
        name : str
            `gating`, `groups`, or one of `ROW_ARGUMENTS`.
        data : pandas.DataFrame
            Rows with the columns that it needs.
        argument : str, default "X"
            What the caller calls the data, for the messages.

        Returns
        -------
        pandas.DataFrame, numpy.ndarray or None
            Gating covariates, or a value for each row; None if there was no such argument.
        """
        if name == "gating":
            return None if self.gate is None else self.gate.encode(data, self.scope, argument)
        part = self.row_parts.get(name)
        column = self.groups if name == "groups" else None
        needed = (column,) if column else () if part is None else part.variables
        missing = [need for need in needed if need not in data.columns]
        if missing:
            neutral = "np.arange" if column else "np.zeros" if name == "offset" else "np.ones"
            raise ValueError(
                f"`{argument}` must have the columns that the formula's `{name}` came from; "
                f"missing are {', '.join(map(repr, missing))}. Add them, or pass `{name}`, such as "
                f"{neutral}(len({argument})) for none."
            )
        if column:
            return select_columns(data, [column], argument)[column].to_numpy()
        if part is None:
            return None
        return part.encode(data, self.scope, argument).to_numpy()[:, 0]

    def has_features_of(self, data: "pandas.DataFrame") -> bool:
        """Tell whether rows are encoded already: they have the names of X, not the variables.

        Parameters
        ----------
        data : pandas.DataFrame
            Rows.

        Returns
        -------
        bool
            Whether the columns are those of X.
        """
        is_raw = set(self.features.variables) <= set(data.columns)
        return not is_raw and set(data.columns) == set(self.feature_names)

    def __repr__(self) -> str:
        """Formula and the columns that it stands for."""
        lines = [f"FormulaDesign: {self.formula}", f"features: {', '.join(self.feature_names)}"]
        lines += [f"gating: {', '.join(self.gate_names)}"] if self.gate is not None else []
        more = {name: text for name, text in self.attributes.items() if name != "formula"}
        lines += [f"{name.removeprefix('formula_')}: {text}" for name, text in more.items()]
        return "\n".join(lines)
