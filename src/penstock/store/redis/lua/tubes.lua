-- Tubes themselves, and the registry of their names, which has its own slot.

-- script: open_store
-- Write the store's random id and schema, unless they exist.
-- KEYS: store
-- ARGV: a new id, the schema
-- Returns: id, schema, 1 if it is the index of a pool
-- FLAGS: allow-oom
redis.call('HSETNX', k_store, 'id', ARGV[1])
redis.call('HSETNX', k_store, 'schema', ARGV[2])
return redis.call('HMGET', k_store, 'id', 'schema', 'pool')

-- script: declare_tube
-- Give a tube its first name or another one, unless that name is in use, or replace its declaration.
-- KEYS: names tubes store
-- ARGV: old name or '', name, number, declaration before or '' for any, declaration, a random word for `altered`
-- Returns: 1; 0 if another tube has the name; -1 if another client has replaced the declaration
local there = redis.call('HGET', k_tubes, ARGV[3])
if ARGV[4] ~= '' and there ~= ARGV[4] and there ~= ARGV[5] then return -1 end
redis.call('HSETNX', k_names, ARGV[2], ARGV[3])
if redis.call('HGET', k_names, ARGV[2]) ~= ARGV[3] then return 0 end
if redis.call('HGET', k_names, ARGV[1]) == ARGV[3] then redis.call('HDEL', k_names, ARGV[1]) end
redis.call('HSET', k_tubes, ARGV[3], ARGV[5])
redis.call('HSET', k_store, 'altered', ARGV[6])
return 1

-- script: unname_tube
-- Remove the name of a dropped tube, unless another tube has that name now.
-- KEYS: names tubes
-- ARGV: name, number
-- FLAGS: allow-oom
if redis.call('HGET', k_names, ARGV[1]) == ARGV[2] then redis.call('HDEL', k_names, ARGV[1]) end
return redis.call('HDEL', k_tubes, ARGV[2])

-- script: pause_tube
-- Pause a tube, or resume it and notify the waiting takes.
-- ARGV: now, shape, limit, 1 or 0
-- Returns: now, how many times this was called: `turn` of meta
-- WITH: now tube
-- FLAGS: allow-oom
if ARGV[4] == '1' then
  redis.call('HSET', k_meta, 'paused', '1')
else
  redis.call('HDEL', k_meta, 'paused')
  if meta[3] then notify() end
end
return { now, redis.call('HINCRBY', k_meta, 'turn', 1) }

-- part: contents
-- Delete the keys of a tube, except meta. Their memory is freed in the background.
-- KEYS: meta tasks ready due buried taken delivered micro_queues queue idle lapses handles ends ended_sessions waits
-- KEYS: addresses outcomes kept groups members moving outbox inbox marks errors
local function unlink_contents(...)
  local kept, gone = { [k_meta] = true }, {}
  for _, key in ipairs({ ... }) do kept[key] = true end
  for _, key in ipairs(KEYS) do
    if not kept[key] then gone[#gone + 1] = key end
  end
  redis.call('UNLINK', unpack(gone))
end

-- script: drop_tube
-- Remove a tube, unless tasks are taken or a take is blocked on it. A tube whose tasks may have to reply keeps its tasks
-- until read_outbox has made their replies; `ghost` of meta is then its name.
-- ARGV: now, name, 1 to remove a busy tube too
-- Returns: now, taken, waiting, 1 if replies have yet to be made; the tube is gone if taken and waiting are 0
-- WITH: now tube contents
-- FLAGS: allow-oom
local taken = redis.call('ZCARD', k_taken) + redis.call('ZCARD', k_delivered)
local waiting, replies = redis.call('HLEN', k_waits), 0
if ARGV[3] == '1' or (taken == 0 and waiting == 0) then
  replies = redis.call('HEXISTS', k_meta, 'posted')
  if replies == 1 then
    unlink_contents(k_tasks, k_outbox)
    redis.call('HDEL', k_meta, 'last')
    redis.call('HSET', k_meta, 'ghost', ARGV[2])
  else
    unlink_contents()
    redis.call('DEL', k_meta)
  end
  notify()
end
return { now, taken, waiting, replies }
