-- Replies and links of chains, on their way from the outbox of one tube into another tube.

-- part: outbox
-- outbox: number -> number, time, name of the tube, data: see read_entry in penstock.store.redis.outbox. Clients put these
-- entries into their tubes in the order of their numbers and then remove them from the outbox; the receiving tube remembers
-- the highest number it received. `posted` of meta is the last number.
-- KEYS: outbox
local function post(name, data)
  local no = redis.call('HINCRBY', k_meta, 'posted', 1)
  redis.call('ZADD', k_outbox, no, struct.pack('>I6I6Bc0', no, now, #name, name) .. data)
end

local function outbox_entries(after)
  return redis.call('ZRANGEBYSCORE', k_outbox, '(' .. after, '+inf', 'LIMIT', 0, 1000)
end

-- Whether a dead client left entries behind: a live client puts the entries that it posts within a second.
local function left_behind()
  local first = redis.call('ZRANGE', k_outbox, 0, 0)[1]
  return first and struct.unpack('>I6', first, 7) <= now - 1000
end

-- script: read_outbox
-- Read the entries of the outbox above a number, in order. Of a dropped tube, also read tasks that have yet to reply.
-- KEYS: meta tasks
-- ARGV: now, number, 1 to read all of them, not only those that were left behind
-- Returns: {entry, ...}; of a dropped tube also its facts, its name and {id, record, ...}; or {}, 1 if nothing is left of the
--   tube
-- WITH: now encode decode outbox
-- FLAGS: allow-oom
local ghost, facts = unpack(redis.call('HMGET', k_meta, 'ghost', 'facts'))
local tasks = {}
if ghost then
  local found = redis.call('HSCAN', k_tasks, 0, 'COUNT', 500)[2]
  for i = 1, #found, 2 do
    tasks[i], tasks[i + 1] = id_of(found[i]), found[i + 1]
  end
  if redis.call('EXISTS', k_tasks, k_outbox) == 0 then redis.call('DEL', k_meta) end
end
if redis.call('EXISTS', k_meta) == 0 then return { {}, 1 } end
local all = ghost or ARGV[3] == '1' or left_behind()
local entries = all and outbox_entries(ARGV[2]) or {}
if ghost then return { entries, facts or '', ghost, tasks } end
return { entries }

-- script: reply_for_dropped
-- Remove tasks of a dropped tube and post their replies, each once.
-- KEYS: meta tasks
-- ARGV: now, then of each task: key, name of the reply tube or '', data
-- WITH: now outbox
-- FLAGS: allow-oom
for i = 2, #ARGV, 3 do
  if redis.call('HDEL', k_tasks, ARGV[i]) == 1 and ARGV[i + 1] ~= '' then post(ARGV[i + 1], ARGV[i + 2]) end
end
return 1

-- script: receive_replies
-- Put replies and links of chains from the outbox of another tube, each once, regardless of the capacity. Skips a link whose
-- address is or was in use: it was cancelled before its turn came.
-- inbox: tube -> the highest number received from it. Numbers arrive in order, so lower ones were received before.
-- KEYS: inbox addresses
-- ARGV: now, shape, limit, number of the other tube, facts, number, 1 if it is a link with an address, spec: msgpack, tail,
--   ...
-- Returns: now, readied, removed, log
-- WITH: now tube encode new_record decode tasks micro_queues? unleased? add_entries
-- FLAGS: allow-oom
local done = tonumber(redis.call('HGET', k_inbox, ARGV[4]) or 0)
for i = 6, #ARGV, 4 do
  local no, spec, tail = tonumber(ARGV[i]), cmsgpack.unpack(ARGV[i + 2]), ARGV[i + 3]
  local at = band(spec[1], 16) ~= 0 and 2 + string.byte(tail) or 1
  if no > done and (ARGV[i + 1] == '' or redis.call('HEXISTS', k_addresses, (text_at(tail, at))) == 0) then
    if ARGV[i + 1] ~= '' and not meta[5] then redis.call('HSETNX', k_meta, 'facts', ARGV[5]) end
    if spec[14] then redis.call('HSETNX', k_meta, 'posted', 0) end
    add_entries({ { spec, 1 } }, { tail }, 0, true)
  end
  done = math.max(done, no)
end
redis.call('HSET', k_inbox, ARGV[4], done)
commit()
return { now, readied, removed, log }
