"""Maximum likelihood: starts, moves, search, results."""
