"""Several responses that share their component, and responses of several classes."""
