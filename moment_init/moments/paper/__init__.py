"""The paper's own estimator: Lemmas 2, 3, 6, Procedures 2 and 3, Algorithm 4."""
