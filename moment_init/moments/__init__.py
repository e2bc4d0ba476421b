"""From the cross-moments E[T(y) S_m(x)] to the directions of the components."""
