"""Permutations of draws, on arrays."""

from itertools import permutations as all_orders

import numpy as np
import pytest

from moment_init.posterior.alignment import (
    _best_permutations,
    most_frequent,
    permutations,
)


def test_a_case_worked_by_hand() -> None:
    """Two components at 0 and 10; the second draw has them exchanged."""
    draws = np.array([[[0.1], [9.8]], [[10.3], [-0.2]]])
    assert permutations(draws, np.array([[0.0], [10.0]])).tolist() == [[0, 1], [1, 0]]
    assert permutations(draws, np.array([[10.0], [0.0]])).tolist() == [[1, 0], [0, 1]]


@pytest.mark.parametrize("n_components", [2, 3, 5])
def test_the_matching_is_the_best_of_all(n_components: int, rng: np.random.Generator) -> None:
    """Costs without structure, so that nearest components coincide and have to be assigned."""
    costs = rng.random((200, n_components, n_components))
    found = _best_permutations(costs)
    places = np.arange(n_components)
    every = np.stack([costs[:, places, list(order)].sum(axis=1) for order in all_orders(places)])
    chosen = np.take_along_axis(costs, found[:, :, None], axis=2)[..., 0].sum(axis=1)
    np.testing.assert_allclose(chosen, every.min(axis=0), rtol=1e-14)
    assert (np.sort(found, axis=1) == places).all()


def test_equal_components_keep_their_places() -> None:
    draws = np.tile(np.array([[1.0], [1.0], [5.0]]), (4, 1, 1))
    reference = np.array([[2.0], [0.0], [5.0]])
    assert (permutations(draws, reference) == [0, 1, 2]).all()


def test_an_element_without_differences_says_nothing(rng: np.random.Generator) -> None:
    draws = rng.normal([[0.0], [4.0]], 0.1, (50, 2, 1))
    constant = np.full((50, 2, 1), 3.0)
    reference = np.array([[0.0, -7.0], [4.0, 9.0]])
    found = permutations(np.concatenate([draws, constant], axis=2), reference)
    assert (found == [0, 1]).all()
    assert (permutations(constant, reference[:, 1:]) == [0, 1]).all()


def test_one_sharp_element_outvotes_many_vague_ones(rng: np.random.Generator) -> None:
    """The sharp element is 50 spreads apart; sixty others are noise, in units a thousand times as
    large. A plain sum of squares would match the noise."""
    n_draws, n_vague = 400, 60
    sharp = np.array([[0.0], [1.0], [2.0]]) + rng.normal(0.0, 0.02, (n_draws, 3, 1))
    vague = 1000.0 * rng.normal(size=(n_draws, 3, n_vague))
    truth = np.argsort(rng.random((n_draws, 3)), axis=1)
    draws = np.concatenate([sharp, vague], axis=2)
    shuffled = np.take_along_axis(draws, truth[:, :, None], axis=1)
    reference = np.concatenate([[[0.0], [1.0], [2.0]], 1000.0 * rng.normal(size=(3, n_vague))], 1)
    found = permutations(shuffled, reference)
    assert (np.take_along_axis(truth, found, axis=1) == np.arange(3)).all()


def test_a_wild_draw_does_not_disturb_the_others(rng: np.random.Generator) -> None:
    draws = np.array([[0.0, 0.0], [3.0, 1.0]]) + rng.normal(0.0, 0.3, (101, 2, 2))
    draws[50] *= 1e12
    reference = np.array([[0.0, 0.0], [3.0, 1.0]])
    found = np.delete(permutations(draws, reference), 50, axis=0)
    # Components are 10 spreads apart along the first element: half of it is exceeded with
    # probability 1e-11 in two hundred draws.
    assert (found == [0, 1]).all()


def test_draws_are_matched_to_each_other_in_the_order_of_the_majority(
    rng: np.random.Generator,
) -> None:
    centre = np.array([[0.0, 0.0], [5.0, 1.0], [2.0, -6.0]])
    draws = centre + rng.normal(0.0, 0.2, (90, 3, 2))
    draws[:40] = draws[:40][:, [2, 0, 1]]
    found = permutations(draws, None, 3)  # begins with a draw of the minority
    assert (found[40:] == [0, 1, 2]).all()
    assert (found[:40] == [1, 2, 0]).all()


def test_labels_of_the_input_do_not_matter(rng: np.random.Generator) -> None:
    """Vague components: many draws are near a border, and yet the same sets are formed."""
    draws = np.array([[0.0], [1.0], [1.5]]) + rng.normal(0.0, 0.7, (300, 3, 4))
    shuffle = np.argsort(rng.random((300, 3)), axis=1)
    shuffled = np.take_along_axis(draws, shuffle[:, :, None], axis=1)
    reference = rng.normal(size=(3, 4))
    first, second = permutations(draws, reference), permutations(shuffled, reference)
    np.testing.assert_array_equal(np.take_along_axis(shuffle, second, axis=1), first)
    first, second = permutations(draws, None, 7), permutations(shuffled, None, 7)
    composed = np.take_along_axis(shuffle, second, axis=1)
    place = np.argsort(first[0])  # up to one order that is common to all draws
    np.testing.assert_array_equal(composed[:, np.argsort(composed[0])], first[:, place])


def test_the_most_frequent_permutation_is_the_identity_where_it_is_one_of_several() -> None:
    orders = np.array([[1, 0], [0, 1], [1, 0], [0, 1]])
    assert most_frequent(orders).tolist() == [0, 1]
    assert most_frequent(orders[[0, 1, 2]]).tolist() == [1, 0]
