-- Moving tubes between stores.

-- script: freeze_tube
-- Freeze a tube that is moved away, so that no script finds it: `sealed` of meta is its last id, `moved` where it went,
-- `sealed_in` the turn in which it was frozen.
-- KEYS: meta taken moving waits
-- ARGV: where it goes, the turn, 1: only while that is the tube's turn
-- Returns: 0 (-1: no such tube), and 0: frozen, 1: tasks are leased, 2: tasks must still follow their groups, 3: the tube
--   is in another turn
-- FLAGS: allow-oom
local last, turn = unpack(redis.call('HMGET', k_meta, 'last', 'turn'))
if not last then
  local sealed = redis.call('HEXISTS', k_meta, 'sealed')
  if sealed == 1 then redis.call('HSET', k_meta, 'sealed_in', ARGV[2]) end
  return { sealed - 1, 0 }
end
if ARGV[3] == '1' and (turn or '0') ~= ARGV[2] then return { 0, 3 } end
if redis.call('EXISTS', k_taken) == 1 then return { 0, 1 } end
if redis.call('EXISTS', k_moving) == 1 then return { 0, 2 } end
redis.call('HSET', k_meta, 'sealed', last, 'sealed_in', ARGV[2], 'moved', ARGV[1])
redis.call('HDEL', k_meta, 'last')
redis.call('DEL', k_waits)
local prefix, no = string.match(k_meta, '^{(.*):(%d+)}:meta$')
redis.call('PUBLISH', prefix .. ':tube_changed', no)
return { 0, 0 }

-- script: unfreeze_tube
-- Undo the freeze of a shard by an interrupted move, unless it was frozen in this turn or later.
-- KEYS: meta
-- ARGV: turn
-- FLAGS: allow-oom
local sealed = redis.call('HMGET', k_meta, 'sealed', 'sealed_in')
if not sealed[1] or tonumber(sealed[2]) >= tonumber(ARGV[1]) then return 0 end
redis.call('HSET', k_meta, 'last', sealed[1])
return redis.call('HDEL', k_meta, 'sealed', 'sealed_in', 'moved')

-- script: erase_tube
-- Delete the tasks of a tube that was moved away, or whose import failed, with everything that depends on them; the memory is
-- freed in the background. `erased` of meta says that nothing of a frozen tube is left.
-- KEYS: meta tasks ready due buried taken delivered lanes queue idle lapses handles ends ended_sessions
-- KEYS: addresses outcomes kept groups members moving marks
-- FLAGS: allow-oom
if redis.call('HEXISTS', k_meta, 'sealed') == 1 then redis.call('HSET', k_meta, 'erased', 1) end
local gone = {}
for _, key in ipairs(KEYS) do
  if key ~= k_meta then gone[#gone + 1] = key end
end
return redis.call('UNLINK', unpack(gone))

-- script: import_batch
-- Store tasks and outcomes of another store; tasks up to the last id are here already.
-- `skipped` of meta: ids that were done in the other store.
-- ARGV: now, shape, limit, facts or '', the id up to which all tasks are here now, tasks: msgpack [[id, state, rank1,
--   rank2, pri, utube, attempts, lease, created, taken, expires, at, ttr, max_attempts, reason, callback, address,
--   reply_to, group, its number], ...], outcomes: msgpack [[id, address, status, error, code, until, has a result],
--   ...], data, ..., results, ...
-- Returns: now
-- WITH: now tube encode decode tasks lifecycle relations unleased?
local tasks, outcomes = cmsgpack.unpack(ARGV[6]), cmsgpack.unpack(ARGV[7])
local before, stored, place = last, 0, 7
if ARGV[4] ~= '' and not meta[5] then
  meta[5] = ARGV[4]
  redis.call('HSET', k_meta, 'facts', meta[5])
end

local function record_of(of, payload)
  return {
    state = of[2], rank1 = of[3], rank2 = of[4], pri = of[5], utube = of[6], attempts = of[7], lease = of[8],
    created = of[9], taken = of[10], expires = of[11], at = of[12], ttr = of[13], max = of[14], reason = of[15],
    callback = of[16], address = of[17], reply_to = of[18], group = of[19], group_no = of[20], payload = payload,
  }
end

for i, of in ipairs(tasks) do
  place = place + 1
  if of[1] > before then
    local rec = record_of(of, ARGV[place])
    last, stored = of[1], stored + 1
    if rec.reply_to then redis.call('HSETNX', k_meta, 'posted', 0) end
    if rec.address or rec.group_no then add_relations(key_of(last), rec, rec.group_no and group_of(rec.group_no)) end
    -- It stands for a ready task, see penstock.store.moving.
    if rec.state == '~' and rec.at <= rec.created then count('delay', -1) end
    add(rec)
  end
end

for _, of in ipairs(outcomes) do
  local key, address, ending = key_of(of[1]), of[2], { status = of[3], error = of[4], code = of[5] }
  if of[7] then
    place = place + 1
    ending.result = ARGV[place]
  end
  keep_outcome(key, address, ending, of[6])
  local newest = redis.call('HGET', k_addresses, address)
  if not newest or newest < key then redis.call('HSET', k_addresses, address, key) end
end

last = math.max(last, tonumber(ARGV[5]))
count('skipped', last - before - stored)
save_groups()
save_last()
finish()
return { now }

-- script: activate_tube
-- Complete an imported tube with its state in the other store, once.
-- `unput` of meta: ids that were never given, because the tube was sharded there, or that another shard has.
-- KEYS: groups
-- ARGV: now, shape, limit, facts, ms, seq, how many of its ids were never given or '' for all that are not here, minus
--   how many calls removed a task, number of counters, name, by, ..., group, total, ...
-- Returns: now
-- WITH: now tube raise_message_id
if redis.call('HSETNX', k_meta, 'landed', 1) == 0 then return { now } end
if meta[5] then redis.call('HSET', k_meta, 'facts', ARGV[4]) end
raise_message_id(ARGV[5], ARGV[6])
-- Tasks that were done in the other store are counted by its counters from now on.
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
    if mark_changed then mark_changed(name) end
  end
end
return { now }
