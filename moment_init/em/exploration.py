r"""How much of the likelihood a search has seen: what further random starts would find.

Random starts are draws from the basins of the optima. After N of them have ended in W distinct
optima, the expected mass of the basins not yet seen is [1]_

.. math:: E[U] = \frac{W (W + 1)}{N (N - 1)},

for uniform priors on the number of optima and on the masses of their basins. Under the same priors

.. math:: E[U^2] = \frac{W (W + 1) \{(W + 1) (W + 2) + 2 (N - W - 1)\}}{(N - 1) N^2 (N + 1)}.

A new optimum is seldom a better one. Of n + 1 runs in random order, the last one is the only one at
the top with probability 1 / (n + 1) at most, and the more runs b have reached the best optimum, the
less likely is one above it. The chance of a better optimum is estimated by E[U] / ((n + 1) b^2);
the power of b was chosen on real and simulated data.

References
----------
.. [1] Boender and Rinnooy Kan (1987), Bayesian stopping rules for multistart global optimization
   methods, Mathematical Programming 37, 59-80.
"""

from dataclasses import dataclass

import numpy as np

from moment_init.results import counted

MASS_LIMIT = 0.02
"""Random starts continue until the estimated mass of optima not yet seen is below this."""

SMALL_CHANCE = 0.02
"""Chance that a repetition of all random starts finds a better optimum that counts as small."""


@dataclass(frozen=True, slots=True)
class UnseenMass:
    """Estimated probability that a further random start ends in an optimum not yet seen.

    Parameters
    ----------
    n_starts : int
        Number N of random starts that converged, about half of each kind.
    n_optima : int
        Number W of distinct optima in which they ended.
    n_best : int
        Number of runs that reached the best optimum independently: random starts, kinds of other
        starts, and runs that began at another optimum.
    n_runs : int
        Number n of all runs, of whatever kind.
    n_unconverged : int
        Number of random starts that did not converge, which do not count.
    stands_out : bool
        Whether several starts reached the best optimum, all others are lower by more than three
        standard errors of the difference, and its components show no sign of a misfit.
    is_sampled : bool
        Whether the random starts used a sample of the rows; the estimates are then for that sample.
    """

    n_starts: int
    n_optima: int
    n_best: int
    n_runs: int
    n_unconverged: int = 0
    stands_out: bool = False
    is_sampled: bool = False

    @property
    def outcome(self) -> str:
        """What the random starts found, in words."""
        starts, optima = (
            counted(self.n_starts, "random start"),
            counted(self.n_optima, "optimum", "optima"),
        )
        clear = ", and the best of all runs stands out" if self.stands_out else ""
        return f"{starts} ended in {optima}{clear}"

    @property
    def mass(self) -> float:
        """Probability that a further random start ends in an optimum not yet seen."""
        n, w = self.n_starts, self.n_optima
        return 1.0 if n < w + 2 else min(1.0, w * (w + 1) / (n * (n - 1)))

    @property
    def error(self) -> float:
        """Standard deviation of that probability, given the starts so far."""
        n, w = self.n_starts, self.n_optima
        if n < w + 2:
            return float("nan")
        square = w * (w + 1) * ((w + 1) * (w + 2) + 2 * (n - w - 1)) / ((n - 1) * n**2 * (n + 1))
        return float(np.sqrt(max(0.0, square - (w * (w + 1) / (n * (n - 1))) ** 2)))

    @property
    def better(self) -> float:
        """Rough probability that a further random start ends in an optimum better than the best."""
        return self.mass / ((self.n_runs + 1) * max(1, self.n_best) ** 2)

    @property
    def better_in_repetition(self) -> float:
        """Probability that as many random starts again find a better optimum."""
        return float(1.0 - (1.0 - self.better) ** self.n_starts)

    @property
    def is_explored(self) -> bool:
        """Whether hardly anything is unseen, or at least hardly anything better."""
        is_unlikely = self.mass < 1.0 and self.better_in_repetition < SMALL_CHANCE
        return self.mass < MASS_LIMIT or self.stands_out or is_unlikely
