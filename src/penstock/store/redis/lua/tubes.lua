-- Tubes themselves, and their names, which have a slot of their own.

-- script: open_store
-- Write the store's random id and schema, unless they exist. A store of an older schema lacks some keys, but is no different.
-- KEYS: store
-- ARGV: a new id, the schema
-- Returns: id, schema, 1 if it is the index of a pool
-- FLAGS: allow-oom
redis.call('HSETNX', k_store, 'id', ARGV[1])
local schema = redis.call('HGET', k_store, 'schema')
if not schema or tonumber(schema) < tonumber(ARGV[2]) then redis.call('HSET', k_store, 'schema', ARGV[2]) end
return redis.call('HMGET', k_store, 'id', 'schema', 'pool')

-- script: name_tube
-- Give a tube its name, unless the name is in use.
-- KEYS: names tubes
-- ARGV: name, number, declaration
-- Returns: number and declaration of the tube that has the name now
if redis.call('HSETNX', k_names, ARGV[1], ARGV[2]) == 1 then redis.call('HSET', k_tubes, ARGV[2], ARGV[3]) end
local no = redis.call('HGET', k_names, ARGV[1])
return { tonumber(no), redis.call('HGET', k_tubes, no) }

-- script: rename_tube
-- Give a tube another name, unless that is in use.
-- KEYS: names tubes
-- ARGV: old name, new name, number, declaration
-- Returns: 1, or 0 if another tube has the name
redis.call('HSETNX', k_names, ARGV[2], ARGV[3])
if redis.call('HGET', k_names, ARGV[2]) ~= ARGV[3] then return 0 end
if redis.call('HGET', k_names, ARGV[1]) == ARGV[3] then redis.call('HDEL', k_names, ARGV[1]) end
redis.call('HSET', k_tubes, ARGV[3], ARGV[4])
return 1

-- script: unname_tube
-- Remove the name of a dropped tube, if it still has it.
-- KEYS: names tubes
-- ARGV: name, number
-- FLAGS: allow-oom
if redis.call('HGET', k_names, ARGV[1]) == ARGV[2] then redis.call('HDEL', k_names, ARGV[1]) end
return redis.call('HDEL', k_tubes, ARGV[2])

-- script: pause_tube
-- Pause a tube, or resume it and notify the waiting takes.
-- ARGV: now, 1 or 0
-- Returns: now, how many times this was called: `turn` of meta
-- WITH: now tube
-- FLAGS: allow-oom
if ARGV[2] == '1' then
  redis.call('HSET', k_meta, 'paused', '1')
else
  redis.call('HDEL', k_meta, 'paused')
  if meta[3] then notify() end
end
return { now, redis.call('HINCRBY', k_meta, 'turn', 1) }

-- script: drop_tube
-- Remove a tube, unless tasks are taken or a take is blocked on it. A tube whose tasks may have to reply keeps its tasks
-- until read_outbox has made their replies; `ghost` of meta is then its name.
-- KEYS: tasks ready due buried taken delivered lanes queue idle lapses handles ends ended_sessions waits
-- KEYS: addresses outcomes kept groups members moving outbox inbox marks
-- ARGV: now, name, 1 to remove a busy tube too
-- Returns: now, taken, waiting, 1 if replies have yet to be made; the tube is gone if taken and waiting are 0
-- WITH: now tube
-- FLAGS: allow-oom
local taken = redis.call('ZCARD', k_taken) + redis.call('ZCARD', k_delivered)
local waiting, replies = redis.call('HLEN', k_waits), 0
if ARGV[3] == '1' or (taken == 0 and waiting == 0) then
  replies = redis.call('HEXISTS', k_meta, 'posted')
  local gone = {}
  for _, key in ipairs(KEYS) do
    if replies == 0 or (key ~= k_meta and key ~= k_tasks and key ~= k_outbox) then gone[#gone + 1] = key end
  end
  redis.call('UNLINK', unpack(gone))
  if replies == 1 then
    redis.call('HDEL', k_meta, 'last')
    redis.call('HSET', k_meta, 'ghost', ARGV[2])
  end
  notify()
end
return { now, taken, waiting, replies }
