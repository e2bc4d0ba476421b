"""The paper, line by line, with `moment_init.paper`."""
