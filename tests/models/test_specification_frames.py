"""Frames about anchors, and the tilts that make directions."""

import numpy as np
import pytest

from moment_init.models.specification import anchor_bases, tilt_per_unit, tilts_of


def unit_columns(rng: np.random.Generator, n_features: int, n_components: int) -> np.ndarray:
    columns = rng.standard_normal((n_features, n_components))
    return np.asarray(columns / np.linalg.norm(columns, axis=0))


def tilted(anchors: np.ndarray, bases: np.ndarray, kappa: float, tilts: np.ndarray) -> np.ndarray:
    """The equation at the head of the module, component by component."""
    columns = []
    for anchor, basis, tilt in zip(anchors.T, bases, tilts, strict=True):
        columns.append((anchor + kappa * basis @ tilt) / np.sqrt(1 + kappa**2 * tilt @ tilt))
    return np.stack(columns, axis=1)


def test_kappa_by_hand() -> None:
    """Tan 60 = sqrt 3, over sqrt 3 for four features: one."""
    assert tilt_per_unit(60.0, 4) == pytest.approx(1.0, rel=1e-15)
    assert tilt_per_unit(45.0, 2) == pytest.approx(1.0, rel=1e-15)


def test_basis_of_an_axis_by_hand() -> None:
    """The complement of the first axis is spanned by the others, whatever its sign."""
    bases = anchor_bases(np.array([[1.0, -1.0], [0.0, 0.0], [0.0, 0.0]]))
    np.testing.assert_array_equal(bases, np.stack([np.eye(3)[:, 1:]] * 2))


@pytest.mark.parametrize("n_features", [2, 3, 20])
def test_frames_are_orthonormal(n_features: int, rng: np.random.Generator) -> None:
    anchors = unit_columns(rng, n_features, 4)
    anchors[:, 3] = np.eye(n_features)[:, -1]  # its first entry is zero
    for anchor, basis in zip(anchors.T, anchor_bases(anchors), strict=True):
        frame = np.column_stack([anchor, basis])
        np.testing.assert_allclose(frame.T @ frame, np.eye(n_features), atol=1e-14)


def test_tilts_are_the_inverse_of_the_map(rng: np.random.Generator) -> None:
    anchors = unit_columns(rng, 5, 3)
    bases = anchor_bases(anchors)
    kappa = tilt_per_unit(30.0, 5)
    tilts = rng.standard_normal((3, 4))
    directions = tilted(anchors, bases, kappa, tilts)
    np.testing.assert_allclose(np.linalg.norm(directions, axis=0), 1.0, rtol=1e-14)
    np.testing.assert_allclose(tilts_of(directions, anchors, bases, kappa), tilts, rtol=1e-12)


def test_anchors_have_no_tilt(rng: np.random.Generator) -> None:
    anchors = unit_columns(rng, 4, 3)
    tilts = tilts_of(anchors, anchors, anchor_bases(anchors), tilt_per_unit(45.0, 4))
    np.testing.assert_allclose(tilts, 0.0, atol=1e-15)


def test_opposite_direction_has_a_finite_tilt(rng: np.random.Generator) -> None:
    anchors = unit_columns(rng, 3, 2)
    bases = anchor_bases(anchors)
    across = bases[:, :, 0].T
    for directions in (-anchors, across, (across - anchors) / np.sqrt(2.0)):
        assert np.all(np.isfinite(tilts_of(directions, anchors, bases, 1.0)))


@pytest.mark.parametrize(("n_features", "angle"), [(2, 20.0), (6, 45.0), (40, 70.0)])
def test_root_mean_square_tangent_is_that_of_the_angle(
    n_features: int, angle: float, rng: np.random.Generator
) -> None:
    """The mean of tan^2 / tan^2(angle) is that of chi^2 / (d - 1): one, variance 2 / (d - 1).

    Within four standard errors: fails once in 16,000 runs.
    """
    n_draws = 4000
    anchor = unit_columns(rng, n_features, 1)
    bases = anchor_bases(anchor)
    kappa = tilt_per_unit(angle, n_features)
    tilts = rng.standard_normal((n_draws, n_features - 1))
    repeated = np.repeat(anchor, n_draws, axis=1)
    directions = tilted(repeated, np.repeat(bases, n_draws, axis=0), kappa, tilts)
    cosines = anchor[:, 0] @ directions
    ratio = np.mean(1.0 / cosines**2 - 1.0) / np.tan(np.radians(angle)) ** 2
    assert np.all(cosines > 0)
    assert abs(ratio - 1.0) < 4.0 * np.sqrt(2.0 / (n_features - 1) / n_draws)


def test_single_feature_has_nowhere_to_tilt_to() -> None:
    anchors = np.array([[1.0, -1.0]])
    bases = anchor_bases(anchors)
    assert tilt_per_unit(45.0, 1) == 0.0
    assert bases.shape == (2, 1, 0)
    assert tilts_of(anchors, anchors, bases, 0.0).shape == (2, 0)
