"""The store on Redis, Valkey and Redis Cluster: every step one script, every tube in one slot."""
