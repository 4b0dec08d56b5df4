"""The test suites on other versions of the servers, by command: `python -m tests.matrix`."""
