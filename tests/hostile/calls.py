"""The public functions, and strategies of calls to each of them."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache, partial
from typing import Any

import numpy as np
from hypothesis import strategies as st

import moment_init
from moment_init import scores
from moment_init.models import mixture_glm, mixture_of_experts
from tests.hostile import answers
from tests.hostile.arguments import (
    DATA_ARGUMENTS,
    FIT_ARGUMENTS,
    SEARCH_ARGUMENTS,
    Entry,
    argued_blocks,
)
from tests.hostile.blocks import REFUSED, SEVERAL_RESPONSES, Block, blocks, clean_block, n_rows
from tests.hostile.contract import Call
from tests.hostile.posteriors import compare_without_compiler, sample_without_compiler, small_tree
from tests.hostile.small_calls import SMALL_CALLS

__all__ = ["CALLS"]

QUICK: dict[str, Any] = {"progressbar": False}

NOT_OF_ESTIMATORS = ("constant y", "names alike as text", "duplicate names")


def _call(block: Block, function: Any, check: Any, **options: Any) -> Call:
    return Call(
        function,
        (block.X, block.y, block.n_components),
        {**block.keywords, **options},
        check,
        block.is_refused,
        defects=block.defects,
    )


def _of_data(
    function: Any,
    check: Any,
    *entries: Mapping[str, Entry],
    answered: tuple[str, ...] = SEVERAL_RESPONSES,
    **options: Any,
) -> st.SearchStrategy[Call]:
    """Calls of what takes a data block and a number of components."""
    known = {name: entry for group in entries for name, entry in group.items()}
    return argued_blocks(entries=known, answered=answered).map(
        lambda block: _call(block, function, check, **options)
    )


# --- estimate, fit_em, select_components, models, sample, compare --------------------------------


@st.composite
def _estimates(draw: st.DrawFn) -> Call:
    block = draw(argued_blocks(entries=DATA_ARGUMENTS, answered=SEVERAL_RESPONSES))
    method = draw(st.sampled_from(["stacked", "stacked", "power", "tensorly"]))
    return _call(block, moment_init.estimate, answers.check_moments, method=method)


@st.composite
def _selections(draw: st.DrawFn) -> Call:
    entries = {**DATA_ARGUMENTS, **FIT_ARGUMENTS}
    block = draw(argued_blocks(entries=entries, answered=SEVERAL_RESPONSES))
    number = block.n_components
    candidates = draw(st.sampled_from([[1, number], (number,), np.array([1, 2]), range(1, 3)]))
    if block.is_refused and not isinstance(candidates, list | tuple):
        candidates = [number]
    options = {"init": "random", "n_starts": 1, **block.keywords}
    criterion = draw(st.sampled_from(["bic", "icl", "aic", "cv"]))
    return Call(
        moment_init.select_components,
        (block.X, block.y, candidates),
        {**options, **QUICK, "criterion": criterion},
        answers.check_choice,
        block.is_refused,
        defects=block.defects,
    )


def _check_model(model: Any) -> None:
    assert model.free_RVs
    for name, values in model.initial_point().items():
        answers.check_finite(name, values)


def _check_comparison(found: Any) -> None:
    assert len(found.table) > 1
    assert repr(found)
    for tree in found.trees.values():
        answers.check_tree(tree)


# --- what uses a fit ------------------------------------------------------------------------------


@cache
def fitted(family: str, n_features: int) -> moment_init.EMFit:
    """A fit of columns without names."""
    block = clean_block(family, 3, 200, n_features, 2)
    return moment_init.fit_em(
        block.X, block.y, 2, **block.keywords, init="random", n_starts=2, random_seed=1, **QUICK
    )


@cache
def jointly_fitted(family: str, n_features: int) -> moment_init.EMFit:
    """A fit of two responses that are equal."""
    block = clean_block(family, 3, 200, n_features, 2)
    return moment_init.fit_em(
        block.X, np.c_[block.y, block.y], 2, **block.keywords, random_seed=1, **QUICK
    )


@st.composite
def _uses_of_fits(draw: st.DrawFn) -> Call:
    """Predictions, memberships and scores of a fit for rows with defects."""
    block = draw(argued_blocks(entries=DATA_ARGUMENTS))
    shape: tuple[int, ...] = getattr(block.X, "shape", ())
    is_joint = draw(st.integers(0, 2)) == 0
    fit = (jointly_fitted if is_joint else fitted)(
        block.family, min(max(shape[1], 1), 4) if len(shape) == 2 else 2
    )
    rows = {name: it for name, it in (block.options or {}).items() if name in _ROW_ARGUMENTS}
    if is_joint and isinstance(block.y, np.ndarray) and block.y.ndim == 1:
        block = replace(block, y=block.y[:, None][:, [0, 0]])  # masked as it was
    is_refused = any(defect in _WRONG_ROWS for defect in block.defects)
    name = draw(st.sampled_from(["predict", "predict_membership", "score"]))
    check: Callable[[Any], None] = partial(answers.check_finite, name)
    if name == "predict":
        known = {name: it for name, it in rows.items() if name in ("offset", "n_trials")}
        return Call(fit.predict, (block.X,), known, check, defects=block.defects)
    if name == "predict_membership":
        check = partial(answers.check_probabilities, name)
    return Call(
        getattr(fit, name), (block.X, block.y), rows, check, is_refused, defects=block.defects
    )


_ROW_ARGUMENTS = ("offset", "n_trials", "groups", "sample_weight")
_WRONG_ROWS = ("NaN in X", "NaN in y", "impossible y", "fraction in y", "masked X", "masked y",
               "complex X", "infinity in X", "short y", "long y", "sparse X")  # fmt: skip


@st.composite
def _memberships(draw: st.DrawFn) -> Call:
    block = draw(argued_blocks(entries=DATA_ARGUMENTS, families=("poisson",)))
    rows = {name: it for name, it in (block.options or {}).items() if name in _ROW_ARGUMENTS}
    options = {**rows, "draws": draw(st.sampled_from([None, 1, 3])), "average": draw(st.booleans())}
    check = partial(answers.check_probabilities, "membership")
    is_refused = any(defect in _WRONG_ROWS for defect in block.defects)
    function = moment_init.predict_membership
    arguments = (small_tree(), block.X, block.y)
    return Call(function, arguments, options, check, is_refused, defects=block.defects)


@st.composite
def _predictions(draw: st.DrawFn, function: Callable[..., Any]) -> Call:
    block = draw(argued_blocks(entries=DATA_ARGUMENTS, families=("poisson",)))
    options = {name: it for name, it in (block.options or {}).items() if name == "offset"}
    options["draws"] = draw(st.sampled_from([None, 1, 3]))
    if function is moment_init.predict:
        options["kind"] = draw(st.sampled_from(["mean", "response", "components"]))
    check = partial(answers.check_finite, function.__name__)
    return Call(function, (small_tree(), block.X), options, check, defects=block.defects)


# --- estimators ----------------------------------------------------------------------------------


def _fit_and_predict(estimator: Any, X: Any, y: Any, fit_options: dict[str, Any]) -> Any:
    estimator.fit(X, y, **fit_options)
    known = {k: v for k, v in fit_options.items() if k in ("offset", "n_trials", "gating")}
    answers.check_finite("features", estimator.transform(X))
    if hasattr(estimator, "predict_proba"):
        answers.check_probabilities("probabilities", estimator.predict_proba(X, **known))
    return estimator, estimator.predict(X, **known)


def _check_regressor(answer: Any) -> None:
    estimator, means = answer
    answers.check_finite("predictions", means)
    # one column per response, if there are several
    assert means.shape[1:] == estimator.coefficients_.shape[:-2]
    answers.check_finite("coefficients", estimator.coefficients_)


def _check_classifier(answer: Any) -> None:
    estimator, labels = answer
    assert set(np.unique(labels)) <= set(estimator.classes_)
    answers.check_finite("coefficients", estimator.coefficients_)


@st.composite
def _regressors(draw: st.DrawFn) -> Call:
    block = draw(_estimator_blocks(answered=SEVERAL_RESPONSES))
    estimator = moment_init.MixtureGLMRegressor(
        block.n_components, family=block.family, random_state=1, **_FAST
    )
    return Call(
        _fit_and_predict,
        (estimator, block.X, block.y, dict(block.options or {})),
        {},
        _check_regressor,
        block.is_refused,
        defects=block.defects,
    )


@st.composite
def _classifiers(draw: st.DrawFn) -> Call:
    block = draw(_estimator_blocks(("bernoulli",), _LABELS))
    estimator = moment_init.MixtureGLMClassifier(block.n_components, random_state=1, **_FAST)
    return Call(
        _fit_and_predict,
        (estimator, block.X, block.y, dict(block.options or {})),
        {},
        _check_classifier,
        block.is_refused,
        defects=block.defects,
    )


_LABELS = ("impossible y", "fraction in y", "text in y", "dates in y")
"""What is a label as good as any."""

_FAST: dict[str, Any] = {"init": "random", "n_starts": 1}


@st.composite
def _estimator_blocks(
    draw: st.DrawFn,
    families: tuple[str, ...] = ("poisson", "gaussian", "gamma", "bernoulli"),
    answered: tuple[str, ...] = (),
) -> Block:
    block = draw(blocks(families, (*NOT_OF_ESTIMATORS, *answered)))
    if draw(st.booleans()):
        return block
    entries = {
        name: entry
        for name, entry in DATA_ARGUMENTS.items()
        if not {"family", "link", "n_trials"} & set(entry[0](5))
    }
    label = draw(st.sampled_from(sorted(entries)))
    make, is_refused = entries[label]
    return replace(
        block,
        options=make(n_rows(block)),
        is_refused=block.is_refused or is_refused,
        defects=(*block.defects, label),
    )


# --- densities -----------------------------------------------------------------------------------

_MODELS: dict[str, Callable[[], scores.InputModel]] = {
    "Gaussian": scores.Gaussian,
    "GaussianMixture": lambda: scores.GaussianMixture(2, random_seed=1),
    "StudentT": scores.StudentT,
    "Independent": scores.Independent,
    "RBM": lambda: scores.RBM(1, random_seed=1),
    "ScoreMatching": lambda: scores.ScoreMatching(5, random_seed=1),
    "Transformed": lambda: scores.Transformed(np.tanh, scores.Gaussian(), is_columnwise=True),
}


@st.composite
def _input_models(draw: st.DrawFn) -> Call:
    block = draw(blocks(("gaussian",)))
    name = draw(st.sampled_from(sorted(_MODELS)))
    is_refused = any(defect in REFUSED and defect.endswith("X") for defect in block.defects)
    weights = draw(st.sampled_from([None, "negative weight", "NaN weight", "uneven weights"]))
    options: dict[str, Any] = {}
    if weights is not None:
        n_obs = (*getattr(block.X, "shape", ()), 5)[0]
        make, wrong = DATA_ARGUMENTS[weights]
        options, is_refused = make(max(n_obs, 1)), is_refused or wrong
    return Call(
        _fit_density,
        (_MODELS[name], block.X),
        options,
        answers.check_input_model,
        is_refused,
        defects=(name, *block.defects),
    )


def _fit_density(make: Callable[[], scores.InputModel], X: Any, **options: Any) -> Any:
    return make().fit(X, **options)


_SEARCHED = (DATA_ARGUMENTS, FIT_ARGUMENTS, SEARCH_ARGUMENTS)

CALLS: dict[str, st.SearchStrategy[Call]] = {
    "estimate": _estimates(),
    "fit_em": _of_data(moment_init.fit_em, answers.check_fit, *_SEARCHED, **QUICK),
    "select_components": _selections(),
    "EMFit": _uses_of_fits(),
    "predict": _predictions(moment_init.predict),
    "marginal_effects": _predictions(moment_init.marginal_effects),
    "predict_membership": _memberships(),
    "MixtureGLMRegressor": _regressors(),
    "MixtureGLMClassifier": _classifiers(),
    "scores": _input_models(),
    "mixture_glm": _of_data(mixture_glm, _check_model, DATA_ARGUMENTS, FIT_ARGUMENTS),
    "mixture_of_experts": _of_data(mixture_of_experts, _check_model, DATA_ARGUMENTS, answered=()),
    "sample": _of_data(
        sample_without_compiler,
        answers.check_tree,
        DATA_ARGUMENTS,
        FIT_ARGUMENTS,
        **QUICK,
        draws=2,
        chains=1,
    ),
    "compare": _of_data(
        compare_without_compiler,
        _check_comparison,
        DATA_ARGUMENTS,
        FIT_ARGUMENTS,
        answered=(),
        **QUICK,
        n_starts=1,
        draws=2,
        chains=1,
    ),
    **SMALL_CALLS,
}
"""Calls by the name of what is called."""
