r"""The paper step by step, on plain arrays.

"The paper" is H. Sedghi, M. Janzamin, A. Anandkumar, "Provable tensor methods for learning mixtures
of generalized linear models", arXiv:1412.3046. `moment_init.estimate` with ``method="power"`` or
``"tensorly"`` calls the functions of this module. In the order of the paper they are:

1. Score functions of the input, S_m(x) (Eq. 9 and 10): `score_function` as arrays,
   `row_scores` without storing them.
2. Cross-moments, :math:`M_m = E[y\, S_m(x)]` (Lemmas 2, 3 and 6, line 1 of Algorithm 1):
   `cross_moment`, with `moment_slices` and `moment_fibres` in factor form, `moment_covariance` for
   their errors, and `subtract_quadratic` against their noise.
3. The tensor and its spectrum: `multilinear`, `tensor_slice`, `leading_subspace`, `noise_edge`.
4. Whitening (Procedure 2): `definite_slice`, `whiten`.
5. The robust tensor power method (Procedure 3, Algorithm 4): `svd_start`, `tensor_fibres`,
   `power_rounds`, `cluster_vectors`, and all of them in `robust_power_method`.
6. Recovery: directions and coefficients (`symmetric_coefficients`, `refine_components`), signs
   (`choose_signs`), and weights if scales and biases are known (`expected_coefficients`,
   `recover_weights`; the remark after Theorem 5).
7. These steps in one call: `decompose_tensor` (steps 3 to 6) and `fit_third_moment` (steps 2 to 6).
"""

from moment_init.moments.paper.cross_moments import (
    RowScores,
    cross_moment,
    moment_covariance,
    moment_fibres,
    moment_slices,
    row_scores,
    score_function,
    subtract_quadratic,
)
from moment_init.moments.paper.decomposition import (
    Decomposition,
    decompose_tensor,
    refine_components,
)
from moment_init.moments.paper.power_iteration import (
    PowerResult,
    cluster_vectors,
    power_rounds,
    robust_power_method,
    svd_start,
    symmetric_coefficients,
    tensor_fibres,
)
from moment_init.moments.paper.recovery import (
    ThirdMomentFit,
    choose_signs,
    coefficient_errors,
    expected_coefficients,
    fit_third_moment,
    noise_edge,
    recover_weights,
)
from moment_init.moments.paper.whitening import (
    WhiteningResult,
    definite_slice,
    leading_subspace,
    multilinear,
    tensor_slice,
    whiten,
)

__all__ = [
    "Decomposition",
    "PowerResult",
    "RowScores",
    "ThirdMomentFit",
    "WhiteningResult",
    "choose_signs",
    "cluster_vectors",
    "coefficient_errors",
    "cross_moment",
    "decompose_tensor",
    "definite_slice",
    "expected_coefficients",
    "fit_third_moment",
    "leading_subspace",
    "moment_covariance",
    "moment_fibres",
    "moment_slices",
    "multilinear",
    "noise_edge",
    "power_rounds",
    "recover_weights",
    "refine_components",
    "robust_power_method",
    "row_scores",
    "score_function",
    "subtract_quadratic",
    "svd_start",
    "symmetric_coefficients",
    "tensor_fibres",
    "tensor_slice",
    "whiten",
]
