-- number: the next tube's number, never given twice.
-- KEYS: store
return redis.call('HINCRBY', k_store, 'last', 1)
