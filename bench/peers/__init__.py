"""Other queues with the same work. They run in their own Python environment, without penstock."""
