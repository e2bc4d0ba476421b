"""Maximum likelihood: starting values, moves, search, fitting and results."""
