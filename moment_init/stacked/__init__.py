"""The stacked estimator: many functions of the response, one tensor, all parameters from moments.

The order to read in: `rows`, `sums`, `hermite_basis`, `projection`, `third_order`, `subspace`,
`tensor`, `overcomplete`, `expectations`, `start_grid`, `noise`, `moment_model`, `refinement`,
`estimator`.
"""

__all__: list[str] = []
