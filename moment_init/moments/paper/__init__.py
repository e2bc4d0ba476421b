"""The paper's own estimator: Lemmas 2, 3 and 6, Procedures 2 and 3, Algorithms 1 and 4."""
