"""Compiled functions: what the key of their cache contains, where it is, and plain Python."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest
from numba.core.caching import CompileResultCacheImpl
from numpy.testing import assert_allclose, assert_array_equal

import moment_init.families
from moment_init.checks import FloatArray
from moment_init.families import compiling
from moment_init.families.compiling import NUMBA_OPTIONS, Compiled, digest_of
from moment_init.families.registry import get_family
from tests.likelihood_problems import FAMILY_LINKS, plain_python

# --- the digest ----------------------------------------------------------------------------------

SOURCE = """
import math
import numpy as np
from math import exp as grow

FACTOR, WHOLE, TABLE, PAIR = 1.0, np.int64(23), np.array([1.0, 2.0]), (1.0, 23.0)

def innermost(x, base=2.0):
    return grow(x) * FACTOR + (x in {3.0, 4.0})

def inner(x):
    return innermost(x) + PAIR[0] + TABLE[1]

def make(shift):
    def outer(x):
        'Add a shift.'
        return [math.sqrt(inner(y)) + shift + WHOLE for y in (x, x)]
    return outer

function = make(5.0)
"""


def digest_after(old: str = "", new: str = "") -> str:
    """Digest of the function above after an edit of its source."""
    assert not old or SOURCE.count(old) == 1
    namespace: dict[str, Any] = {}
    exec(SOURCE.replace(old, new) if old else SOURCE, namespace)
    return digest_of(namespace["function"])


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("* FACTOR", "/ FACTOR"),
        ("FACTOR, WHOLE, TABLE, PAIR = 1.0", "FACTOR, WHOLE, TABLE, PAIR = 1.5"),
        ("np.int64(23)", "np.int64(24)"),
        ("[1.0, 2.0]", "[1.0, 2.5]"),
        ("np.array([1.0, 2.0])", "np.array([1.0, 2.0], dtype=np.float32)"),
        ("(1.0, 23.0)", "(1.02, 3.0)"),  # the same digits, one after the other
        ("{3.0, 4.0}", "{3.0, 5.0}"),
        ("base=2.0", "base=3.0"),
        ("exp as grow", "expm1 as grow"),
        ("math.sqrt", "math.cbrt"),
        ("make(5.0)", "make(5.5)"),
    ],
)
def test_digest_follows_every_change(old: str, new: str) -> None:
    assert digest_after(old, new) != digest_after()


def test_digest_follows_the_module() -> None:
    # a file in the cache names the modules of the functions that it inlines
    namespaces = [{"__name__": name} for name in ("first", "second")]
    for namespace in namespaces:
        exec(SOURCE, namespace)
    first, second = (namespace["function"] for namespace in namespaces)
    assert digest_of(first) != digest_of(second)  # type: ignore[arg-type]


def test_digest_ignores_what_does_not_run() -> None:
    assert digest_after("import math\n", "# a comment\n\nimport math\n") == digest_after()
    assert digest_after("TABLE[1]", "TABLE[1]  # why") == digest_after()


def test_digest_follows_the_options(monkeypatch: pytest.MonkeyPatch) -> None:
    before = digest_after()
    monkeypatch.setitem(NUMBA_OPTIONS, "error_model", "python")
    assert digest_after() != before


def test_digest_of_functions_that_call_each_other() -> None:
    def even(n: int) -> bool:
        return n == 0 or odd(n - 1)

    def odd(n: int) -> bool:
        return n != 0 and even(n - 1)

    assert digest_of(even) == digest_of(even) != digest_of(odd)


# --- compiled functions and plain Python ---------------------------------------------------------


@pytest.mark.parametrize(("name", "link"), FAMILY_LINKS)
def test_functions_of_arrays_are_plain_python(
    name: str, link: str, rng: np.random.Generator
) -> None:
    """The loops over blocks of rows are compared in the tests of the likelihood."""
    family, n = get_family(name, link), 60
    eta, dispersion = rng.standard_normal(n), np.repeat([0.7, 4.0, 150.0], n // 3)
    trials = rng.integers(1, 30, n).astype(np.float64)
    y = family.sample(family.link.mean(eta), dispersion=dispersion, n_trials=trials, rng=rng)
    eta[:4] = -900.0, -40.0, 40.0, 900.0

    def evaluate() -> list[FloatArray]:
        parts = family.log_density_derivatives(y, eta, dispersion=dispersion, n_trials=trials)
        return [*(part for part in parts if part is not None), *family.prepare_rows(y, trials)]

    compiled = evaluate()
    with plain_python():
        plain = evaluate()
    for one, other in zip(compiled, plain, strict=True):
        # the last digits of log gamma in C and in numba differ
        assert_allclose(one, other, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("link", ["logit", "probit"])
@pytest.mark.parametrize("z", [-8.0, -0.3, 0.0, 2.5])
def test_probability_and_slope_of_binary_kernels(link: str, z: float) -> None:
    family = get_family("bernoulli", link)
    assert family.kernel.mean_and_slope is not None
    expected = [family.link.derivative(z, order) for order in (0, 1)]
    assert_allclose(family.kernel.mean_and_slope(z), expected, rtol=1e-13)


def _double(x, result):  # type: ignore[no-untyped-def]
    for i in range(len(x)):
        result[i] = 2.0 * x[i]


@pytest.mark.parametrize("way", ["cached", "no folder", "no compiler"])
def test_a_loop_works_with_and_without_cache(
    way: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(numba.config, "DISABLE_JIT", way == "no compiler")
    if way == "no folder":
        monkeypatch.setattr(CompileResultCacheImpl, "_locator_classes", [])
    compiling._announce.cache_clear()
    result = np.zeros(3)
    Compiled(_double, "double")(np.arange(3.0), result)
    assert_array_equal(result, [0.0, 2.0, 4.0])
    assert ("compiling" in capsys.readouterr().err) == (way != "no compiler")
    assert bool(list(tmp_path.rglob("double-*.nbi"))) == (way == "cached")


# --- the cache on disk, in other processes -------------------------------------------------------

EVALUATE = """
from moment_init.families.registry import get_family
print(float(get_family("poisson").{}))
"""

EDIT = """

@scalar
def log_factorial(count):
    return 6.0
"""

type Evaluate = Callable[..., tuple[float, bool]]


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """Copy the families into a package of their own, so that tests may edit them."""
    source = Path(moment_init.families.__file__).parent
    copy = tmp_path / "packages" / "moment_init"
    shutil.copytree(source, copy / "families", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(source.parent / "checks.py", copy)
    (copy / "__init__.py").touch()
    return copy


@pytest.fixture
def evaluate(package: Path) -> Evaluate:
    """Evaluate a Poisson in a new process; the result tells whether anything was compiled."""

    def run(method: str, **variables: str) -> tuple[float, bool]:
        kept = {key: value for key, value in os.environ.items() if not key.startswith("NUMBA_")}
        environment = {**kept, "PYTHONPATH": str(package.parent), "PYTHONSAFEPATH": "1"}
        found = subprocess.run(
            [sys.executable, "-c", EVALUATE.format(method)],
            env={**environment, **variables},
            capture_output=True,
            text=True,
            check=True,
        )
        return float(found.stdout), "compiling" in found.stderr

    return run


def test_an_edit_of_an_inlined_function_is_seen(package: Path, evaluate: Evaluate) -> None:
    """The edited function is in another file than the loop, and is reached through a third one.

    The same sources use the cache; the original ones find theirs again after the edit is undone.
    """
    edited = package / "families" / "special.py"
    original = edited.read_text(encoding="utf-8")
    density = "log_density_eta(0.0, 0.0)"
    assert evaluate(density) == (-1.0, True)
    assert evaluate(density) == (-1.0, False)
    edited.write_text(original + EDIT, encoding="utf-8")
    assert evaluate(density) == (-7.0, True)
    edited.write_text(original, encoding="utf-8")
    assert evaluate(density) == (-1.0, False)


@pytest.mark.parametrize("has_user_folder", [True, False])
def test_cache_of_a_package_that_cannot_be_written(
    package: Path, evaluate: Evaluate, tmp_path: Path, has_user_folder: bool
) -> None:
    """A file has the name of the folder that a cache would be written to.

    Nobody can then create the folder, not even a user who may write everywhere.
    """
    (package / "families" / "__pycache__").touch()
    home = tmp_path / "home"
    home.mkdir()
    cache = home / "cache"
    if not has_user_folder:
        cache.touch()
    variables = {"HOME": str(home), "XDG_CACHE_HOME": str(cache), "LOCALAPPDATA": str(cache)}
    constant = "log_base_measure([1.0])[0]"
    assert evaluate(constant, **variables) == (0.0, True)
    assert evaluate(constant, **variables) == (0.0, not has_user_folder)
    assert bool(list(home.rglob("*.nbi"))) == has_user_folder
    assert not list(package.rglob("*.nbi"))
