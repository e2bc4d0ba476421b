# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# Imports are in the cells that need them, and the last line of a cell is its output.
# ruff: noqa: E402

# %%
SEED = 3
QUICK = False  # True for a smaller run

# %% [markdown]
# # The paper, step by step
#
# H. Sedghi, M. Janzamin and A. Anandkumar, *Provable tensor methods for learning mixtures of
# generalized linear models* (arXiv:1412.3046), recover a mixture of regressions from one
# third-order moment. This notebook follows the paper line by line. Every equation stands beside the
# function of `moment_init.paper` that computes it; `estimate(method="power")` calls the same
# functions.
#
# The model is a mixture of $r = 3$ logistic regressions of $d = 5$ inputs,
#
# $$E[y \mid x, h = j] = g(s_j \langle u_j, x \rangle + b_j), \qquad P(h = j) = w_j,$$
#
# with unit directions $u_j$, scales $s_j$ and biases $b_j$. (The paper has no scales: its $u_j$ are
# not of unit length.)

# %%
# %matplotlib inline
import sys
from pathlib import Path

import numpy as np

# A kernel starts in the notebook's folder, so the root of the repository is added to the path.
FOLDER = Path(__file__).resolve().parent if "__file__" in globals() else Path.cwd()
sys.path.insert(0, str(FOLDER.parents[1]))

from case_studies.paper_step_by_step.run import (
    BIASES,
    CURVE_OBS,
    DIRECTIONS,
    N_COMPONENTS,
    N_DATA_SETS,
    N_FEATURES,
    N_OBS,
    QUICK_CURVE_OBS,
    QUICK_DATA_SETS,
    QUICK_OBS,
    QUICK_SCORE_OBS,
    SCALES,
    SCORE_OBS,
    WEIGHTS,
    check_lemmas,
    compare_scores,
    describe_curve,
    describe_environment,
    describe_lemmas,
    describe_scores,
    describe_walk,
    draw_curve,
    draw_directions,
    draw_scores,
    draw_tensor,
    measure_curve,
    simulate,
    walk,
)
from moment_init import paper
from moment_init.scores import Gaussian

rng = np.random.default_rng(SEED)
rows = simulate(QUICK_OBS if QUICK else N_OBS, rng)
X, y = rows[:, :-1], rows[:, -1]
X.shape, y.mean().round(3)

# %% [markdown]
# ## Score functions of the input (Eq. 9 and 10)
#
# $$S_m(x) = (-1)^m \frac{\nabla^{(m)} p(x)}{p(x)}, \qquad
# S_m = -S_{m-1} \otimes \nabla \log p - \nabla S_{m-1}.$$
#
# They turn moments into derivatives: $E[f(x)\, S_m(x)] = E[\nabla^{(m)} f(x)]$ (Theorem 9). For
# $x \sim N(0, I)$ they are Hermite polynomials, $S_1 = x$ and $S_2 = x x' - I$. `score_function`
# returns them as arrays, one tensor per row. (The text of the paper also calls $\nabla \log p$ the
# score; the sign here is that of Eq. 9, $S_1 = -\nabla \log p$.)

# %%
density = Gaussian(np.zeros(N_FEATURES), np.eye(N_FEATURES))
S_2 = paper.score_function(X[:1], 2, density)
np.abs(S_2 - (np.outer(X[0], X[0]) - np.eye(N_FEATURES))).max()

# %% [markdown]
# ## Cross-moments (Lemmas 2 and 3, line 1 of Algorithm 1)
#
# $$\hat M_m = \frac1n \sum_i y_i\, S_m(x_i), \qquad
# M_3 = \sum_j \lambda_j\, u_j^{\otimes 3}, \qquad
# \lambda_j = w_j s_j^3 \rho_j, \quad \rho_j = E[g'''(s_j z + b_j)].$$
#
# $M_1$ would be enough for a single regression (Lemma 2), but is one vector for three directions.
# $M_2$ gives their span, but not the directions. $M_3$ gives the directions (Lemma 3). `row_scores`
# stands for the score functions of all rows without storing $n d^3$ numbers.

# %%
scores = paper.row_scores(X, density)
few = slice(0, 10_000)
S_3 = paper.score_function(X[few], 3, density)
explicit = paper.cross_moment(y[few], S_3)
streamed = paper.cross_moment(y[few], paper.row_scores(X[few], density))
float(np.abs(explicit - streamed).max())

# %% [markdown]
# Since $E[q(x)\, S_3(x)] = E[\nabla^3 q] = 0$ for every quadratic $q$, the quadratic part of $y$
# can be subtracted first. This is not in the paper; it removes noise.

# %%
residual, M_1 = paper.subtract_quadratic(y, scores)
M_3 = paper.cross_moment(residual, scores)
M_3.shape, y.var().round(3), residual.var().round(3)

# %% [markdown]
# ## The tensor and its spectrum
#
# A sum of three cubes of independent vectors has an unfolding of rank three. The noise of the
# sample reaches up to the dashed line.

# %%
result = walk(QUICK_OBS if QUICK else N_OBS, seed=SEED)
draw_tensor(result)

# %%
span, spectrum = paper.leading_subspace(M_3, N_COMPONENTS)
core = paper.multilinear(M_3, span)  # M_3(P, P, P): 3 x 3 x 3
spectrum.round(3)

# %% [markdown]
# ## Whitening (Procedure 2)
#
# 1. Draw $\theta \sim N(0, I)$.
# 2. $V = T(I, I, \theta) = \sum_j \lambda_j \langle u_j, \theta \rangle\, u_j u_j'$.
# 3. $V = \tilde U \, \mathrm{diag}(\tilde\lambda)\, \tilde U'$.
# 4. $W = \tilde U \, \mathrm{diag}(\tilde\lambda^{-1/2})$; return $T(W, W, W)$.
#
# Line 4 needs $\tilde\lambda > 0$. The signs of $\tilde\lambda$ are those of
# $\lambda_j \langle u_j, \theta \rangle$, so most random slices are indefinite, even up to sign:

# %%
thetas = rng.standard_normal((1000, N_COMPONENTS))
signs = [np.sign(np.linalg.eigvalsh(paper.tensor_slice(core, theta))) for theta in thetas]
sum(abs(sign.sum()) == N_COMPONENTS for sign in signs)  # all positive, or all negative

# %% [markdown]
# The package searches for $\theta$ instead: the smallest eigenvalue of $V$ is a concave function of
# $\theta$. The whitened components are then orthogonal.

# %%
theta, is_definite = paper.definite_slice(core, rng)
whitened = paper.whiten(core, theta, N_COMPONENTS)
W = whitened.whitening_matrix
components = W.T @ span.T @ DIRECTIONS
components /= np.linalg.norm(components, axis=0)
print(is_definite)
(components.T @ components).round(2)

# %% [markdown]
# ## Initialisation and power iteration (Procedure 3, Algorithm 4)
#
# A start is the top singular vector of $T(I, I, \theta)$ with a random $\theta$. From each of $L$
# starts, $N$ updates
#
# $$a \leftarrow \frac{T(I, a, a)}{\| T(I, a, a) \|}$$
#
# lead to an eigenvector. Clustering keeps one vector per eigenvector: the one with the largest
# $|T(a, a, a)|$ is taken, all vectors with $|\langle a, \hat a \rangle| > \nu / 2$ are removed, and
# so on until none is left.

# %%
starts = np.column_stack([paper.svd_start(whitened.tensor, rng) for _ in range(30)])
fibres = paper.tensor_fibres(whitened.tensor)  # a -> T(I, a, a)
reached = paper.power_rounds(fibres, starts, 30)
vectors = paper.cluster_vectors(fibres, reached)
print(np.bincount(np.abs(vectors.T @ reached).argmax(axis=0)))
(vectors.T @ vectors).round(2)

# %% [markdown]
# The factor form (remark after Theorem 4) computes $T(I, a, a)$ from $X$ and $y$, without a tensor.

# %%
direction = span @ W @ vectors[:, :1]
by_rows = paper.moment_fibres(residual, scores, direction)
by_tensor = paper.tensor_fibres(M_3)(direction)
float(np.abs(by_rows - by_tensor).max())

# %% [markdown]
# ## Recovery of the directions
#
# The pseudo-inverse of $W'$ maps eigenvectors back to directions. Whitening amplifies the noise of
# weak components, so TensorLy's alternating least squares on $M_3$ itself has the last word.

# %%
raw = span @ whitened.unwhitening_matrix @ vectors
raw /= np.linalg.norm(raw, axis=0)
U = span @ paper.refine_components(core, span.T @ raw)
np.abs(DIRECTIONS.T @ U).round(4)  # one entry near 1 in each row and column

# %% [markdown]
# ## Coefficients, signs and weights
#
# The $\lambda_j$ are the least-squares coefficients of $u_j^{\otimes 3}$ in $M_3$, not the
# eigenvalues of the whitened tensor. A cube leaves the sign of $u_j$ open: $M_1$ decides, because
# $g$ increases. If scales and biases are known, $w_j = \lambda_j / (s_j^3 \rho_j)$ (remark after
# Theorem 5); otherwise they need more than $M_3$, and the paper continues with EM (line 3 of
# Algorithm 1).

# %%
third, unexplained = paper.symmetric_coefficients(M_3, U)
first, _ = paper.symmetric_coefficients(M_1, U)
turns = paper.choose_signs(first, third, is_third_positive=False)
order = (DIRECTIONS.T @ (U * turns)).argmax(axis=1)
rho = paper.expected_coefficients(SCALES, BIASES)  # s_j^m rho_j^(m) for m = 1, 2, 3
weights = paper.recover_weights((third * turns)[order][None], rho[2:])
print("true weights", WEIGHTS, "estimated", weights.round(3))

# %% [markdown]
# All of it in one table, with standard errors:

# %%
print(describe_walk(result))

# %%
draw_directions(result)

# %% [markdown]
# The same in one call: `decompose_tensor` from $M_3$ on, `fit_third_moment` from $X$ and $y$ on.

# %%
fit = paper.fit_third_moment(y, scores, N_COMPONENTS, rng)
np.abs(DIRECTIONS.T @ fit.decomposition.directions).max(axis=1).round(4)

# %% [markdown]
# ## A single regression (Lemma 2) and linear regressions (Lemma 6)
#
# For one component, $M_1 = E[g']\, s\, u$. For the linear model $g''' = 0$ and $M_3$ vanishes;
# $y^3$ in place of $y$ gives $M_3 = \sum_j 6\, w_j s_j^3\, u_j^{\otimes 3}$. (Theorem 11 of the
# paper leaves out the factor 6.)

# %%
n_obs = QUICK_SCORE_OBS if QUICK else SCORE_OBS
print(describe_lemmas(check_lemmas(n_obs, seed=SEED), n_obs))

# %% [markdown]
# ## A score function of one's own
#
# With inputs from Student's t, the score functions of a Gaussian are wrong. One's own density needs
# only the gradient of its logarithm, here
#
# $$\nabla \log p(x) = -\frac{(\nu + d)\, x}{\nu + \|x\|^2};$$
#
# Eq. 10 then gives $S_2$ and $S_3$.

# %%
comparison = compare_scores(n_obs, seed=SEED)
print(describe_scores(comparison))
draw_scores(comparison)

# %% [markdown]
# ## The error against the number of rows
#
# Theorem 5 asks for $n = \tilde O(d^3 r^4 / (\epsilon^2 s_{\min}^2(U)))$ rows for an error of
# $\epsilon$: the error falls as $n^{-1/2}$.

# %%
sizes, number = (QUICK_CURVE_OBS, QUICK_DATA_SETS) if QUICK else (CURVE_OBS, N_DATA_SETS)
curve = measure_curve(sizes, number, seed=SEED)
print(describe_curve(curve))
draw_curve(curve)

# %%
print(describe_environment())
