-- Part, only before Redis 7: without it, TIME forbids later writes.
redis.replicate_commands()
