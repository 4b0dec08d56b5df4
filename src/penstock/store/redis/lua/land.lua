-- land: an arriving tube learns what it was elsewhere, once.
-- ARGV: now, shape, limit, facts, ms, seq, how many of its ids were never given, or '': all that are not here; less than 0: how many of its calls
--   removed a task; number of calls, name, by, …, group, total, …
-- Answer: now
-- KEYS: groups
-- WITH: moment base
-- `unput` of meta: ids that were never given, because the tube was sharded elsewhere, or another shard has them.
if redis.call('HSETNX', k_meta, 'landed', 1) == 0 then return { now } end
if head[5] then redis.call('HSET', k_meta, 'facts', ARGV[4]) end
local last = redis.call('HMGET', k_meta, 'ms', 'seq')
local ms, seq = tonumber(last[1] or 0), tonumber(last[2] or 0)
if ms < tonumber(ARGV[5]) or (ms == tonumber(ARGV[5]) and seq < tonumber(ARGV[6])) then
  redis.call('HSET', k_meta, 'ms', ARGV[5], 'seq', ARGV[6])
end
-- What was done elsewhere is counted by its calls from now on.
redis.call('HSET', k_meta, 'unput', ARGV[7] ~= '' and ARGV[7] or redis.call('HGET', k_meta, 'skipped') or 0)
redis.call('HINCRBY', k_meta, 'skipped', ARGV[8])
local groups = 10 + 2 * ARGV[9]
for i = 10, groups - 1, 2 do redis.call('HINCRBY', k_meta, ARGV[i], ARGV[i + 1]) end
for i = groups, #ARGV, 2 do
  local name = 'g' .. struct.pack('>I6', ARGV[i])
  local stored = redis.call('HGET', k_groups, name)
  if stored then
    local total = struct.pack('>I6', ARGV[i + 1])
    redis.call('HSET', k_groups, name, string.sub(stored, 1, 1) .. total .. string.sub(stored, 8))
    if mark then mark(name) end
  end
end
return { now }
