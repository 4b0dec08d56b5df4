"""The Redis protocol: any Redis client of any language puts, takes and settles tasks."""
