-- seek: the task of an address, or how the last one ended.
-- ARGV: now, address
-- Answer: now, id or 0, outcome if there is one, the id of what had the address last
-- KEYS: meta tasks addresses outcomes kept
-- WITH: moment record decode
-- FLAGS: no-writes
if redis.call('HEXISTS', k_meta, 'last') == 0 then return { -1 } end
local key = redis.call('HGET', k_addresses, ARGV[2])
if not key then return { now, 0 } end
if redis.call('HEXISTS', k_tasks, key) == 1 then return { now, id_of(key) } end
local over = tonumber(redis.call('ZSCORE', k_kept, 'o' .. key .. ARGV[2]) or 0)
return { now, 0, over > now and redis.call('HGET', k_outcomes, key), id_of(key) }
