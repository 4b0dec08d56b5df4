"""Other queues with the same work. They run with a Python of their own, where penstock is not installed."""
