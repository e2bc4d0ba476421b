"""The test suite; a package, so that its modules can share helpers."""
