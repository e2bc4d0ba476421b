"""Lower limits below which Dask inputs are read whole: small tables are then treated as large."""

import pytest


@pytest.fixture
def nothing_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """No table is small enough to be read whole."""
    pytest.importorskip("dask.array")
    for name in ("MOST_READ_WHOLE", "FEW_ROWS"):
        monkeypatch.setattr(f"moment_init.data.dask_rows.{name}", 0)


@pytest.fixture
def little_held(monkeypatch: pytest.MonkeyPatch, nothing_whole: None) -> None:
    """Nor are more than small samples of rows held in memory."""
    monkeypatch.setattr("moment_init.data.dask_rows.MOST_HELD", 2**16)
    monkeypatch.setattr("moment_init.moments.sums.FEW_DOUBLES", 2**16)
