"""Choose the number of components by an information criterion or by cross-validation."""

from collections.abc import Iterable
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from moment_init.checks import (
    FloatArray,
    RandomSeed,
    make_generator,
    notify,
    quiet_notices,
    validate_n_components,
)
from moment_init.data.checking import RegressionData, validate_data
from moment_init.data.formulas import takes_formula
from moment_init.em.fitting import fit_em
from moment_init.em.prediction import rows_for, unit_scores
from moment_init.em.result import EMFit
from moment_init.progress import Display, progress
from moment_init.results import Status, counted

if TYPE_CHECKING:
    import pandas

IndexArray = NDArray[np.intp]
Criterion = Literal["bic", "icl", "aic", "cv"]

CRITERIA: tuple[str, ...] = ("bic", "icl", "aic", "cv")

_DECIMALS = {"cv_score": 4, "cv_error": 4}
"""Log-likelihoods per unit are printed with more decimals than sums over units, which have one."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ComponentChoice:
    """Fits with several numbers of components, and the number that was chosen.

    Parameters
    ----------
    table : pandas.DataFrame
        One row per number: n_components, log_likelihood, n_parameters, aic, bic, icl, status,
        bounds; with criterion "cv" also the held-out log-likelihood per unit and its standard error
        (cv_score, cv_error).
    chosen : int
        The chosen number of components.
    fit : EMFit
        Fit to all rows.
    criterion : str
        The criterion of the choice.
    sound : int or None
        Number that is chosen among the fits that are identified: those on no bound, without a
        collapsed variance and without components that coincide. None if there is no such fit. It
        differs from `chosen` if the criterion prefers a fit that is not identified.
    warnings : tuple of str
        Why the chosen fit is doubtful, and what to do.
    """

    table: "pandas.DataFrame"
    chosen: int
    fit: EMFit
    criterion: str
    sound: int | None
    warnings: tuple[str, ...] = ()

    def __repr__(self) -> str:
        """Table with the chosen number marked."""
        cells = self._cells()
        widths = [2 + max(len(row[k]) for row in cells) for k in range(len(cells[0]))]
        lines = [
            "".join(f"{cell:>{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in cells
        ]
        warnings = [f"! {warning}" for warning in self.warnings]
        return "\n".join([self._title(), *lines, *warnings])

    def _repr_html_(self) -> str:
        """Same table for a notebook."""
        head, *body = self._cells()
        cell = '<td style="text-align: right; font-variant-numeric: tabular-nums">'
        names = "".join(f"<th>{escape(name)}</th>" for name in head)
        rows = "".join(
            "<tr>" + "".join(f"{cell}{escape(value)}</td>" for value in row) + "</tr>"
            for row in body
        )
        warnings = "".join(f"<li>{escape(warning)}</li>" for warning in self.warnings)
        return f"<p>{escape(self._title())}</p><table><tr>{names}</tr>{rows}</table>" + (
            f"<ul>{warnings}</ul>" if warnings else ""
        )

    def _title(self) -> str:
        return f"ComponentChoice: {counted(self.chosen, 'component')} by {self.criterion}"

    def _mark(self, number: int) -> str:
        if number == self.chosen:
            return "chosen" if number == self.sound else "chosen, not identified"
        return "chosen among the identified" if number == self.sound else ""

    def _cells(self) -> list[list[str]]:
        """Return the printed cells: names, then one row per number, with the chosen one marked."""
        rows = [[*map(str, self.table.columns), ""]]
        for record in self.table.to_dict("records"):
            cells = [
                f"{value:.{_DECIMALS.get(str(name), 1)}f}"
                if isinstance(value, float)
                else f"{value}"
                for name, value in record.items()
            ]
            rows.append([*cells, self._mark(record["n_components"])])
        return rows


@takes_formula
def select_components(
    X: Any,
    y: Any,
    candidates: Iterable[int],
    *,
    family: Any = "bernoulli",
    link: str | None = None,
    offset: Any = None,
    n_trials: Any = None,
    sample_weight: Any = None,
    groups: Any = None,
    random_seed: RandomSeed = None,
    gating: Any = None,
    criterion: Criterion = "bic",
    n_folds: int = 5,
    **options: Any,
) -> ComponentChoice:
    """Fit mixtures with several numbers of components and choose one.

    Parameters
    ----------
    X : array-like or DataFrame, shape (n_obs, n_features), or str
        Inputs; or a formula such as ``"y ~ a + b | g"``.
    y : array-like, shape (n_obs,) or (n_obs, n_responses), or DataFrame
        Response, or several responses. With a formula, its data.
    candidates : iterable of int
        Numbers of components to compare.
    family : str or Family, or a sequence of them, default "bernoulli"
        Family of the response, or one per response; "categorical" for class labels. With a
        formula the default is chosen by the values of the response.
    link : str, optional
        Link; by default that of the family.
    offset, n_trials, sample_weight, groups : array-like, optional
        As in `fit_em`.
    random_seed : int, sequence of int, numpy.random.Generator or None
        Seed of every fit and of the folds, which are the same for all numbers of components.
    gating : array-like or DataFrame, shape (n_obs, n_gate), optional
        Gating covariates.
    criterion : {"bic", "icl", "aic", "cv"}, default "bic"
        Criterion to compare; "cv" is the held-out log-likelihood per row or group.
    n_folds : int, default 5
        Number of folds of "cv". The rows of a group stay together.
    **options
        Further arguments of `fit_em`, such as `shared`, `priors`, `fixed_directions`, `n_starts` or
        `progressbar`.

    Returns
    -------
    ComponentChoice
        The table, the chosen number and its fit.

    Raises
    ------
    TypeError
        For data or candidates of the wrong type.
    ValueError
        For an unknown criterion, no candidates, or folds without rows.

    Warns
    -----
    UserWarning
        If the chosen fit is not identified: on a bound, with a collapsed variance or an enormous
        standard error, or with components that coincide. The warning names the number that is
        chosen among the others. The states of all fits are in the table.

    Notes
    -----
    "cv" needs `n_folds` additional fits per candidate. Differences in its score that are smaller
    than its standard error mean little; the table has both. With `priors`, an argument of `fit_em`,
    the fits are maxima of the posterior density, and the criteria use their likelihood.
    """
    if criterion not in CRITERIA:
        raise ValueError(
            f"`criterion` must be one of {', '.join(map(repr, CRITERIA))}; got {criterion!r}."
        )
    data = validate_data(
        X,
        y,
        family=family,
        link=link,
        offset=offset,
        n_trials=n_trials,
        sample_weight=sample_weight,
        groups=groups,
        gating=gating,
    )
    numbers = _checked_candidates(candidates, data.n_obs)
    folds: list[IndexArray] = []
    if criterion == "cv":
        data = data.whole("`criterion` must not be 'cv'")
        folds = _draw_folds(data.n_obs, data.groups, n_folds, make_generator(random_seed))
    fits, scores = {}, {}
    is_shown = bool(options.get("progressbar", True))
    with progress("select_components", is_shown=is_shown) as display, quiet_notices():
        for number in reversed(numbers):  # the largest first: it fails if there are too few rows
            display.update(f"{counted(number, 'component')}, all rows")
            seeds = _seeds(random_seed, 1 + len(folds))
            fits[number] = fit_em(data, None, number, random_seed=seeds[0], **options)
            if folds:
                scores[number] = _cross_validate(data, number, folds, options, seeds[1:], display)
    table = _table({number: fits[number] for number in numbers}, scores)
    choice = _choose(table, fits, criterion)
    if choice.warnings:
        notify(" ".join(choice.warnings), UserWarning)
    return choice


def _choose(
    table: "pandas.DataFrame", fits: dict[int, EMFit], criterion: Criterion
) -> ComponentChoice:
    """Choose by the criterion, and say so if the fit is not identified."""
    values = -table["cv_score"] if criterion == "cv" else table[criterion]
    by_number = dict(zip(table["n_components"].tolist(), values.tolist(), strict=True))
    chosen = min(by_number, key=lambda number: by_number[number])
    sound = [number for number in by_number if _is_sound(fits[number])]
    best = min(sound, key=lambda number: by_number[number], default=None)
    warnings: list[str] = []
    if chosen != best:
        others = "none of the others is"
        if best is not None:
            others = f"among the others {criterion} chooses {best}"
        warnings.append(
            f"The chosen fit with {counted(chosen, 'component')} is not identified; {others}."
        )
    if chosen != best or fits[chosen].status is Status.NOT_EXPLORED:
        warnings += fits[chosen].warnings
    return ComponentChoice(table, chosen, fits[chosen], criterion, best, tuple(warnings))


def _is_sound(fit: EMFit) -> bool:
    """Whether a fit is identified; one that did not converge may lie on a bound."""
    if fit.status is Status.NOT_CONVERGED:
        return not fit.bounds
    return fit.status is not Status.NOT_IDENTIFIED


def _checked_candidates(candidates: Iterable[int], n_obs: int) -> list[int]:
    try:
        proposed = list(candidates)
    except TypeError:
        raise TypeError(
            "`candidates` must be a sequence of numbers of components; got "
            f"{candidates!r}. Pass for instance range(1, 6)."
        ) from None
    numbers = sorted({validate_n_components(number, n_obs) for number in proposed})
    if not numbers:
        raise ValueError(
            "`candidates` must hold at least one number of components; got none. Pass for "
            "instance range(1, 6)."
        )
    return numbers


def _seeds(random_seed: RandomSeed, count: int) -> list[RandomSeed]:
    """Return the same seed for every fit, so that `fit_em` can reproduce each of them."""
    if isinstance(random_seed, np.random.Generator):
        return list(random_seed.spawn(count))
    return [random_seed] * count


def _draw_folds(
    n_obs: int, groups: NDArray[np.generic] | None, n_folds: int, rng: np.random.Generator
) -> list[IndexArray]:
    """Draw the rows that each fold holds out; the rows of a group stay together."""
    codes = np.arange(n_obs)
    if groups is not None:
        from pandas import factorize  # for labels of any type; imported only with groups

        codes = np.asarray(factorize(groups)[0], dtype=np.intp)
    n_units = int(codes.max()) + 1
    is_whole = isinstance(n_folds, int | np.integer) and not isinstance(n_folds, bool)
    if not is_whole or not 2 <= n_folds <= n_units:
        raise ValueError(
            f"`n_folds` must be a whole number between 2 and the number of units ({n_units}); got "
            f"{n_folds!r}. Use 5, for instance."
        )
    fold_of_unit = rng.permutation(np.arange(n_units) % n_folds)
    fold_of_row = fold_of_unit[codes]
    return [np.flatnonzero(fold_of_row == fold) for fold in range(n_folds)]


def _cross_validate(
    data: RegressionData,
    number: int,
    folds: list[IndexArray],
    options: dict[str, Any],
    seeds: list[RandomSeed],
    display: Display,
) -> tuple[float, float]:
    """Compute the held-out log-likelihood per unit and its standard error."""
    values, weights = [], []
    for fold, (held_out, seed) in enumerate(zip(folds, seeds, strict=True)):
        display.update(f"{counted(number, 'component')}, fold {fold + 1} of {len(folds)}")
        kept = np.setdiff1d(np.concatenate(folds), held_out)
        try:
            fit = fit_em(data.take(kept), None, number, random_seed=seed, **options)
            scores = _scores(fit, data.take(held_out))
        except ValueError as error:
            error.add_note(f"This was fold {fold} of {len(folds)} with {number} components.")
            raise
        values.append(scores[0])
        weights.append(scores[1])
    return _weighted_mean(np.concatenate(values), np.concatenate(weights))


def _weighted_mean(values: FloatArray, weights: FloatArray) -> tuple[float, float]:
    """Compute a mean and its standard error, for weights that count rows."""
    total = float(weights.sum())
    mean = float(weights @ values) / total
    variance = float(weights @ np.square(values - mean)) / total
    return mean, float(np.sqrt(variance / total))


def _scores(fit: EMFit, data: RegressionData) -> tuple[FloatArray, FloatArray]:
    """Log-likelihoods and weights of the units of rows that were held out."""
    y = data.y if data.classes is None else data.classes[data.y.astype(np.intp)]
    names = ("offset", "n_trials", "gating", "groups", "sample_weight")
    rows, _ = rows_for(fit, data.X, y, **{name: getattr(data, name) for name in names})
    return unit_scores(fit, rows)


def _table(fits: dict[int, EMFit], scores: dict[int, tuple[float, float]]) -> "pandas.DataFrame":
    import pandas

    records = []
    for number, fit in fits.items():
        record: dict[str, Any] = {"n_components": number}
        names = ("log_likelihood", "n_parameters", "aic", "bic", "icl")
        record |= {name: getattr(fit, name) for name in names}
        if number in scores:
            record["cv_score"], record["cv_error"] = scores[number]
        records.append({**record, "status": str(fit.status), "bounds": ", ".join(fit.bounds)})
    return pandas.DataFrame(records)
