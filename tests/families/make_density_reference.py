"""Write `density_reference.json`: log densities and their derivatives with 25 correct digits.

It needs mpmath, which the tests do not:

    .venv/bin/python -m pip install mpmath
    .venv/bin/python tests/families/make_density_reference.py

Section "families" has one entry for each point: `family`, `link`, the arguments `y`, `eta`,
`dispersion` and `n_trials` (null where the family has none) as doubles, and as decimal strings
`log_base_measure`, `value` (with all constants), `eta1`, `eta2` and, with a dispersion, `tau1`,
`tau2` and `eta_tau`, where tau is the logarithm of the dispersion. Every quantity is a sum of
terms, written out below, and `sizes` holds the sum of their absolute values: a double cannot be
expected to be more accurate than a small multiple of its rounding unit times this size. Terms
are chosen so that the size is small: a difference of log gammas that has a stable formula is one
term. Each sum is compared with derivatives of the textbook density, taken with 120 digits.

Section "categorical" has `n_classes`, `y` (the code of a class), `eta` (the predictors of the
classes 1, 2, ...; that of class 0 is zero), and as decimal strings `value`, `gradient` and
`hessian` of log P(y) in eta:

    P(y = c) = exp(eta_c) / (1 + sum_k exp(eta_k)),
    gradient_c = 1{y = c} - P(c),    hessian_cd = P(c) P(d) - 1{c = d} P(c).

It has no sizes, because every quantity has a formula without cancellation: 1 - P(c) is the sum of
the other probabilities, and -log P(y) is the log1p of sum_{k != y} exp(eta_k - eta_y).
"""

import importlib
import itertools
import json
import math
from pathlib import Path
from typing import Any

PATH = Path(__file__).with_name("density_reference.json")
N_DIGITS = 25
DERIVATIVES = {"value": (0, 0), "eta1": (1, 0), "eta2": (2, 0)}
DERIVATIVES_WITH_TAU = DERIVATIVES | {"tau1": (0, 1), "tau2": (0, 2), "eta_tau": (1, 1)}

type Terms = dict[str, list[Any]]
type Point = tuple[float, float, float | None, float | None]  # y, eta, dispersion, n_trials


def logit(mp: Any, eta: Any) -> tuple[Any, Any, Any]:
    """Evaluate log g and its first two derivatives for the logistic function."""
    lower = 1 / (1 + mp.exp(eta))
    return -mp.log1p(mp.exp(-eta)), lower, -lower / (1 + mp.exp(-eta))


def probit(mp: Any, eta: Any) -> tuple[Any, Any, Any]:
    """Evaluate log g and its first two derivatives for the normal distribution function."""
    ratio = mp.npdf(eta) / mp.ncdf(eta)
    value = mp.log(mp.ncdf(eta)) if eta < 0 else mp.log1p(-mp.ncdf(-eta))
    return value, ratio, -ratio * (eta + ratio)


def binomial_terms(mp: Any, link: str, y: Any, eta: Any, a: Any, n: Any) -> Terms:
    """Use the symmetry of the links, ``1 - g(eta) = g(-eta)``; bernoulli is the case n = 1."""
    n = 1 if n is None else n
    log_mean = {"logit": logit, "probit": probit}[link]
    upper, lower = log_mean(mp, eta), log_mean(mp, -eta)
    return {
        "log_base_measure": [mp.log(mp.binomial(n, y))],
        "value": [y * upper[0], (n - y) * lower[0]],
        "eta1": [y * upper[1], -(n - y) * lower[1]],
        "eta2": [y * upper[2], (n - y) * lower[2]],
    }


def poisson_terms(mp: Any, link: str, y: Any, eta: Any, a: Any, n: Any) -> Terms:
    mean = mp.exp(eta)
    return {
        "log_base_measure": [-mp.loggamma(y + 1)],
        "value": [y * eta, -mean],
        "eta1": [y, -mean],
        "eta2": [-mean],
    }


def negative_binomial_terms(mp: Any, link: str, y: Any, eta: Any, a: Any, n: Any) -> Terms:
    """With ``t = eta - log(a)`` the textbook probabilities are the logistic function of +-t."""
    t = eta - mp.log(a)
    log_upper, lower, _ = logit(mp, t)
    log_lower, upper, _ = logit(mp, -t)
    ratio = mp.loggamma(a + y) - mp.loggamma(a)
    ratio1 = mp.psi(0, a + y) - mp.psi(0, a)
    ratio2 = mp.psi(1, a + y) - mp.psi(1, a)
    slope = [a * ratio1, a * log_lower]
    return {
        "log_base_measure": [-mp.loggamma(y + 1)],
        "value": [y * log_upper, a * log_lower, ratio],
        "eta1": [y * lower, -a * upper],
        "eta2": [-(y + a) * upper * lower],
        "tau1": [*slope, a * upper, -y * lower],
        "tau2": [*slope, a**2 * ratio2, 2 * a * upper, -(y + a) * upper * lower],
        "eta_tau": [upper * y * lower, -upper * a * upper],
    }


def gaussian_terms(mp: Any, link: str, y: Any, eta: Any, a: Any, n: Any) -> Terms:
    z = (y - eta) / a
    return {
        "log_base_measure": [-mp.log(2 * mp.pi) / 2],
        "value": [-(z**2) / 2, -mp.log(a)],
        "eta1": [z / a],
        "eta2": [-1 / a**2],
        "tau1": [z**2, mp.mpf(-1)],
        "tau2": [-2 * z**2],
        "eta_tau": [-2 * z / a],
    }


def gamma_terms(mp: Any, link: str, y: Any, eta: Any, a: Any, n: Any) -> Terms:
    """Use ``q = log(y) - eta`` and ``c(a) = a log(a) - a - log Gamma(a)``."""
    q = mp.log(y) - eta
    ratio = mp.exp(q)
    kernel = [a * q, -a * (ratio - 1)]
    constant1, constant2 = mp.log(a) - mp.psi(0, a), 1 / a - mp.psi(1, a)
    return {
        "log_base_measure": [-mp.log(y)],
        "value": [*kernel, a * mp.log(a) - a - mp.loggamma(a)],
        "eta1": [a * ratio, -a],
        "eta2": [-a * ratio],
        "tau1": [*kernel, a * constant1],
        "tau2": [*kernel, a * constant1, a**2 * constant2],
        "eta_tau": [a * ratio, -a],
    }


TERMS = {
    "bernoulli": binomial_terms,
    "binomial": binomial_terms,
    "poisson": poisson_terms,
    "negative_binomial": negative_binomial_terms,
    "gaussian": gaussian_terms,
    "gamma": gamma_terms,
}


def textbook_density(mp: Any, family: str, link: str, y: Any, eta: Any, a: Any, n: Any) -> Any:
    """Evaluate the log density as a function of the mean and the dispersion."""
    if family in ("bernoulli", "binomial"):
        coefficient = mp.log(mp.binomial(n or 1, y))
        log_mean = {
            "logit": lambda x: -mp.log(1 + mp.exp(-x)),
            "probit": lambda x: probit(mp, x)[0],
        }
        return coefficient + y * log_mean[link](eta) + ((n or 1) - y) * log_mean[link](-eta)
    mean = eta if link == "identity" else mp.exp(eta)
    if family == "poisson":
        return y * mp.log(mean) - mean - mp.loggamma(y + 1)
    if family == "negative_binomial":
        constant = mp.loggamma(y + a) - mp.loggamma(a) - mp.loggamma(y + 1)
        return constant + a * mp.log(a / (a + mean)) + y * mp.log(mean / (a + mean))
    if family == "gaussian":
        return mp.log(mp.npdf(y, mean, a))
    return a * mp.log(a / mean) + (a - 1) * mp.log(y) - a * y / mean - mp.loggamma(a)


def check(mp: Any, family: str, link: str, point: list[Any], sums: dict[str, Any]) -> None:
    """Compare each sum with a derivative of the textbook density, taken with 120 digits."""
    y, eta, a, n = point
    for name, (eta_order, tau_order) in (DERIVATIVES_WITH_TAU if a else DERIVATIVES).items():
        with mp.workdps(120):
            if a:
                expected = mp.diff(
                    lambda e, t: textbook_density(mp, family, link, y, e, mp.exp(t), n),
                    (eta, mp.log(a)),
                    (eta_order, tau_order),
                )
            else:
                expected = mp.diff(
                    lambda e: textbook_density(mp, family, link, y, e, None, n), eta, eta_order
                )
        if not mp.almosteq(sums[name], expected, 10.0 ** -(N_DIGITS + 5), mp.mpf(10) ** -800):
            raise ValueError(f"{family}, {link}, {point}, {name}: {sums[name]}, not {expected}")


def family_entry(mp: Any, family: str, link: str, point: Point) -> dict[str, Any]:
    exact = [None if argument is None else mp.mpf(argument) for argument in point]
    terms = TERMS[family](mp, link, *exact)
    terms["value"] += terms["log_base_measure"]
    sums = {name: mp.fsum(parts) for name, parts in terms.items()}
    check(mp, family, link, exact, sums)
    return {
        "family": family,
        "link": link,
        **dict(zip(("y", "eta", "dispersion", "n_trials"), point, strict=True)),
        **{name: mp.nstr(total, N_DIGITS) for name, total in sums.items()},
        "sizes": {
            name: float(mp.nstr(mp.fsum(abs(part) for part in parts), 4))
            for name, parts in terms.items()
        },
    }


def categorical_entry(mp: Any, y: int, eta: tuple[float, ...]) -> dict[str, Any]:
    odds = [mp.mpf(1), *(mp.exp(mp.mpf(predictor)) for predictor in eta)]
    p = [each / mp.fsum(odds) for each in odds]
    others = [mp.fsum(p[:c] + p[c + 1 :]) for c in range(len(p))]  # 1 - p without cancellation
    classes = range(1, len(p))
    hessian = [[p[c] * (p[d] if c != d else -others[c]) for d in classes] for c in classes]
    return {
        "n_classes": len(p),
        "y": y,
        "eta": eta,
        "value": mp.nstr(mp.log(p[y]) if p[y] < 0.5 else mp.log1p(-others[y]), N_DIGITS),
        "gradient": [mp.nstr(others[c] if c == y else -p[c], N_DIGITS) for c in classes],
        "hessian": [[mp.nstr(entry, N_DIGITS) for entry in row] for row in hessian],
    }


ORDINARY_ETA = (-2.2, -0.4, 0.1, 0.9, 2.1)
# On both sides of 100, where Stirling's series takes over from differences of log gamma.
SHAPES = (1e-3, 0.1, 0.7, 12.0, 99.5, 100.5, 1e4, 1e7)


def bernoulli_points(link: str) -> list[Point]:
    """Put far predictors on the unlikely and on the likely side of each response."""
    far = {
        "logit": (-80, -45, -36, -20, -8, -1e-8, 0, 5, 12, 25, 36.5, 50, 80),
        "probit": (-60, -45, -25, -12, -6, -1e-8, 0, 5, 8, 20, 30, 37, 60),
    }
    return [(y, eta, None, None) for eta in (*ORDINARY_ETA, *far[link]) for y in (0.0, 1.0)]


def binomial_points(link: str) -> list[Point]:
    far = (-80.0, -30.0, 30.0, 80.0) if link == "logit" else (-60.0, -20.0, 20.0, 60.0)
    scale = 1.0 if link == "logit" else 1 / 1.7  # the probit is about the logit at 1.7 eta
    few = [(0.0, 7.0), (3.0, 7.0), (7.0, 7.0)]
    many = [(3.0, -12.7), (5e5, 0.01), (999_999.0, 13.8), (0.0, -5.0), (1e6, 20.0), (25e4, -1.1)]
    return [
        *[(y, eta, None, n) for (y, n), eta in itertools.product(few, ORDINARY_ETA)],
        *[(y, eta, None, n) for (y, n), eta in itertools.product([*few, (1.0, 1.0)], far)],
        *[(y, eta * scale, None, 1e6) for y, eta in many],
        *[(40.0, -3.2 * scale, None, 1e3), (1e3, far[3], None, 1e3), (500.0, far[0], None, 1e3)],
    ]


def poisson_points(link: str) -> list[Point]:
    ordinary = itertools.product((0.0, 1.0, 4.0, 60.0), ORDINARY_ETA)
    far = itertools.product((0.0, 3.0), (-40.0, -20.0, 15.0, 40.0))
    huge = itertools.product((1e3, 1e6, 1e9), (-0.3, 1e-3, 0.3, None))
    return [
        *[(y, eta, None, None) for y, eta in (*ordinary, *far)],
        *[(y, -40.0 if q is None else math.log(y) + q, None, None) for y, q in huge],
    ]


def negative_binomial_points(link: str) -> list[Point]:
    ordinary = itertools.product((0.0, 1.0, 4.0, 60.0), (-2.2, 0.1, 2.1), (0.6, 1.7, 320.0))
    far = itertools.product((0.0, 3.0, 1e3), (-40.0, 40.0), (1e-3, 5.0, 1e7))
    huge = itertools.product((1e3, 1e6, 1e9), (0.3,), SHAPES)
    equal_mean = itertools.product((2.0, 1e9), (1e-3,), (1e-3, 99.5, 100.5, 1e7))
    return [
        *[(y, eta, a, None) for y, eta, a in (*ordinary, *far)],
        *[(y, math.log(y) + q, a, None) for y, q, a in (*huge, *equal_mean)],
    ]


def gaussian_points(link: str) -> list[Point]:
    ordinary = itertools.product((-1.3, 0.0, 2.5), ORDINARY_ETA, (0.6,))
    rest = [(2.5, 0.9), (-1.3, 80.0), (1e6, 1_000_000.25), (3.0, 3.0), (0.1, 0.1 + 1e-9)]
    deviations = (1e-3, 0.05, 1.0, 30.0, 1e3)
    return [
        *[(y, eta, sd, None) for y, eta, sd in ordinary],
        *[(y, eta, sd, None) for (y, eta), sd in itertools.product(rest, deviations)],
    ]


def gamma_points(link: str) -> list[Point]:
    ordinary = itertools.product((0.02, 1.0, 6.5), (-2.2, 0.1, 2.1), (0.5, 2.3))
    near = itertools.product([(1.3, 0.25), (2e-3, -6.2)], SHAPES)
    far = itertools.product(
        [(1.0, -40.0), (1.0, 40.0), (1e-9, 20.0), (1e9, -5.0)], (1e-3, 2.0, 1e7)
    )
    return [
        *[(y, eta, a, None) for y, eta, a in ordinary],
        *[(y, eta, a, None) for (y, eta), a in (*near, *far)],
    ]


POINTS = {
    ("bernoulli", "logit"): bernoulli_points,
    ("bernoulli", "probit"): bernoulli_points,
    ("binomial", "logit"): binomial_points,
    ("binomial", "probit"): binomial_points,
    ("poisson", "log"): poisson_points,
    ("negative_binomial", "log"): negative_binomial_points,
    ("gaussian", "identity"): gaussian_points,
    ("gamma", "log"): gamma_points,
}

CATEGORICAL_ETA: list[tuple[float, ...]] = [
    *[(0.0, 0.0), (0.3, -1.2), (2.1, 1.9), (-0.7, -2.5), (5.0, -8.0)],
    *[(36.5, 36.0), (80.0, 79.5), (80.0, -80.0), (-80.0, -75.0), (300.0, -300.0)],
    *[(0.0, 0.0, 0.0), (0.3, -1.2, 0.8), (2.1, 1.9, -0.4), (-0.7, -2.5, -1.1), (5.0, -8.0, 12.0)],
    *[(36.5, 36.0, -36.0), (80.0, 79.5, 79.0), (80.0, -80.0, 0.0), (-80.0, -75.0, -40.0)],
]


def main() -> None:
    """Write the file, one line for each point."""
    mp = importlib.import_module("mpmath").mp
    mp.dps = 60
    sections = {
        "families": [
            family_entry(mp, family, link, point)
            for (family, link), points in POINTS.items()
            for point in points(link)
        ],
        "categorical": [
            categorical_entry(mp, y, eta) for eta in CATEGORICAL_ETA for y in range(len(eta) + 1)
        ],
    }
    blocks = [
        f'"{name}": [\n' + ",\n".join(json.dumps(entry) for entry in entries) + "\n]"
        for name, entries in sections.items()
    ]
    PATH.write_text("{\n" + ",\n".join(blocks) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
