"""The worker: takes tasks, runs handlers in threads, an event loop or processes, and settles tasks in batches."""
