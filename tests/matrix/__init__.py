"""The test suites on other server versions: `python -m tests.matrix`."""
