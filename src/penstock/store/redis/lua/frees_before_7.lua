-- Part, only before Redis 7: after a first write that needs no memory, such as this, which changes nothing, a script may
-- write on at the memory limit.
redis.call('PERSIST', KEYS[1])
