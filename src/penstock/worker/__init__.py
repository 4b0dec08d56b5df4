"""The worker: takes tasks, runs their handlers in threads, on a loop or in processes, and settles them in batches."""
