-- number: numbers for the next tube, never given twice.
-- ARGV: how many
-- Answer: the last of them
-- KEYS: store
return redis.call('HINCRBY', k_store, 'last', ARGV[1])
