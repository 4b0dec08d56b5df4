-- sought: an addressed task by its id, or how it ended. One that is there is waited for from now on.
-- ARGV: now, key
-- Answer: now, 1 when it is there, outcome if there is one
-- KEYS: meta tasks outcomes kept
-- WITH: moment
-- FLAGS: allow-oom
if redis.call('HEXISTS', k_meta, 'last') == 0 then return { -1 } end
if redis.call('HEXISTS', k_tasks, ARGV[2]) == 1 then
  redis.call('HSET', k_meta, 'awaited', '1')
  return { now, 1 }
end
local stored = redis.call('HGET', k_outcomes, ARGV[2])
if not stored then return { now, 0 } end
local address = struct.unpack('>Bc0', stored, 2 + string.byte(stored))
local over = tonumber(redis.call('ZSCORE', k_kept, 'o' .. ARGV[2] .. address) or 0)
return { now, 0, over > now and stored }
