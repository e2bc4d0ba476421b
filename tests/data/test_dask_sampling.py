"""Samplers get a part of a Dask input, with its own weights, and never in silence."""

from typing import Any

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_array_equal

from moment_init import sample
from moment_init.data.blocks import sample_rows
from moment_init.data.checking import validate_data
from moment_init.models import specification

N_OBS = 3_000
RNG = np.random.default_rng(1)
FRAME = pd.DataFrame(RNG.normal(size=(N_OBS, 3)), columns=["a", "b", "g"]).assign(
    y=RNG.poisson(2.0, size=N_OBS), w=np.arange(N_OBS) % 3
)


DRAWN = "that of 100 rows drawn at random from 3000: .* 5.5 times"


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch, nothing_whole: None) -> None:
    monkeypatch.setattr("moment_init.posterior.sampling.SUBSAMPLED_ROWS", 100)


def _draw(*, is_weighted: bool, gating: Any) -> Any:
    lazy = dd.from_pandas(FRAME, npartitions=4)
    weights = lazy["w"] if is_weighted else None
    rest = {"sample_weight": weights, "gating": gating}
    data = validate_data(lazy[["a", "b"]], lazy["y"], family="poisson", **rest)
    return data.sampled(100, np.random.default_rng(2))


@pytest.mark.usefixtures("few")
def test_rows_keep_their_weights_and_names() -> None:
    lazy = dd.from_pandas(FRAME, npartitions=4)
    drawn = _draw(is_weighted=True, gating=lazy[["g"]])
    index = sample_rows(2_000, 100, np.random.default_rng(2).spawn(1)[0])
    counted = FRAME[FRAME["w"] > 0].iloc[index]
    assert drawn.feature_names == ("a", "b")
    assert drawn.gate_names == ("g",)
    assert_array_equal(drawn.X, counted[["a", "b"]])
    assert_array_equal(drawn.gating, counted[["g"]])
    assert_array_equal(drawn.y, counted["y"])
    assert_array_equal(drawn.sample_weight, counted["w"])


def test_few_rows_are_all_taken() -> None:
    drawn = _draw(is_weighted=False, gating=FRAME["g"])
    assert_array_equal(drawn.X, FRAME[["a", "b"]])
    assert len(drawn.gating) == N_OBS


@pytest.mark.usefixtures("few")
def test_sample_passes_the_subsample_on(monkeypatch: pytest.MonkeyPatch) -> None:
    class Seen(Exception):
        pass

    def specify(data: Any, n_components: int, **options: Any) -> None:
        assert isinstance(data.X, np.ndarray)
        assert data.X.shape == (100, 2)
        raise Seen

    monkeypatch.setattr(specification, "specify", specify)
    X = da.from_array(FRAME[["a", "b"]].to_numpy(), chunks=(700, 2))
    with pytest.raises(Seen), pytest.warns(UserWarning, match=DRAWN) as seen:
        sample(X, FRAME["y"].to_numpy(), 2, family="poisson", random_seed=1)
    assert seen[0].filename == __file__
