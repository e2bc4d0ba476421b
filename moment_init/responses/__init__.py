"""Several responses that share their component."""
