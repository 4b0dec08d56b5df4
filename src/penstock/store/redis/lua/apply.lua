-- Reading tasks for the engine, and writing what it decided.

-- script: read_tasks
-- Read tasks by key or by name, or from an index in its order; and the groups that they are in.
-- KEYS: tasks addresses ready buried delivered
-- ARGV: now, shape, limit, then `tasks`, key, ...; or `addresses`, name, ...; or an index, the place to begin at
--   (negative: from its end) and how many
-- Returns: now, {id, record, ...}, {number, record, ...}
-- WITH: now tube encode decode names? groups with_groups
-- FLAGS: no-writes
local from, keys = ARGV[4], {}
if from == 'tasks' then
  for i = 5, #ARGV do keys[i - 4] = ARGV[i] end
elseif from == 'addresses' then
  for i = 5, #ARGV do
    local key = key_named and key_named(ARGV[i]) or redis.call('HGET', k_addresses, ARGV[i])
    keys[#keys + 1] = key or nil
  end
else
  local index = ({ ready = k_ready, buried = k_buried, delivered = k_delivered })[from]
  local start, total = tonumber(ARGV[5]), redis.call('ZCARD', index)
  if start < 0 then start = start + total end
  local stop = math.min(start + tonumber(ARGV[6]), total) - 1
  local names = start < 0 and {} or start <= stop and redis.call('ZRANGE', index, start, stop) or {}
  for i, name in ipairs(names) do keys[i] = key_in(name) end
end
return { now, with_groups(keys) }

-- part: with_groups
-- Tasks by their keys, as {id, record, ...}, and the groups that they are in, as {number, record, ...}.
local function with_groups(keys)
  local tasks, found = {}, {}
  for first = 1, #keys, 1000 do
    for i, value in ipairs(redis.call('HMGET', k_tasks, unpack(keys, first, math.min(first + 999, #keys)))) do
      local rec = value and band(string.byte(value, 2) or 0, 64) ~= 0 and decode(value)
      local no = rec and rec.group_no
      if value then tasks[#tasks + 1], tasks[#tasks + 2] = id_of(keys[first + i - 1]), value end
      if no and groups[no] == nil and group_of(no) then
        found[#found + 1], found[#found + 2] = no, redis.call('HGET', k_groups, 'g' .. key_of(no))
      end
    end
  end
  return tasks, found
end

-- script: held_leases
-- Whether a session holds these leases. What is left of a cancelled group is held by nobody.
-- KEYS: tasks
-- ARGV: now, shape, limit, session, key, lease, ...
-- Returns: now, {1 or 0, ...}
-- WITH: now tube encode decode groups
-- FLAGS: no-writes
local session, held = tonumber(ARGV[4]), {}
for i = 5, #ARGV, 2 do
  local value = redis.call('HGET', k_tasks, ARGV[i])
  local rec = value and decode(value)
  local ours = rec and rec.state == 't' and rec.owner == session and rec.lease == tonumber(ARGV[i + 1])
  local group = ours and rec.group_no and group_of(rec.group_no)
  held[#held + 1] = ours and (not rec.at or rec.at > now) and not (group and group.state == 'x') and 1 or 0
end
return { now, held }

-- script: find_tasks
-- Read a page of tasks in id order, in the given states, without those past their ttl.
-- KEYS: tasks
-- ARGV: now, shape, limit, states, after, most, how many ids to look at
-- Returns: now, the last id looked at, the last id given, number of tasks stored, id, record, ...
-- WITH: now tube encode decode
-- FLAGS: no-writes
local last, id, most = tonumber(meta[1]), tonumber(ARGV[5]), tonumber(ARGV[6])
local top = math.min(last, id + tonumber(ARGV[7]))
local answer = { now, 0, last, redis.call('HLEN', k_tasks) }
while id < top and #answer < 4 + 2 * most do
  local keys = {}
  for i = 1, math.min(100, top - id) do keys[i] = key_of(id + i) end
  for i, value in ipairs(redis.call('HMGET', k_tasks, unpack(keys))) do
    id = id + 1
    if value and string.find(ARGV[4], string.sub(value, 1, 1), 1, true) and #answer < 4 + 2 * most then
      local rec = decode(value)
      if rec and (rec.state == 't' or not rec.expires or rec.expires > now) then
        answer[#answer + 1] = id
        answer[#answer + 1] = value
      end
    end
  end
end
answer[2] = id
return answer

-- script: ready_since
-- When the ready task that waits longest was put or last taken, as far as two tell: the one that is taken next, and the
-- first of the highest first rank. Of messages, the first that was not handed out.
-- KEYS: tasks ready
-- ARGV: now, shape, limit, what waits: `ready` for tasks, `messages`, or nothing
-- Returns: now, that time or 0 if none is ready
-- WITH: now tube encode decode
-- FLAGS: no-writes
local since = 0
local function look(key)
  local value = key and redis.call('HGET', k_tasks, key)
  local rec = value and decode(value)
  local at = rec and math.max(rec.created, rec.taken or 0)
  if at and (since == 0 or at < since) then since = at end
end
if ARGV[4] == 'messages' then
  local id = tonumber(redis.call('HGET', k_meta, 'handed') or 0)
  local top = math.min(tonumber(meta[1]), id + 1000) -- others may have been removed
  while since == 0 and id < top do
    id = id + 1
    look(key_of(id))
  end
elseif ARGV[4] == 'ready' then
  local last = redis.call('ZRANGE', k_ready, -1, -1, 'WITHSCORES')[2]
  if last then
    look(key_in(redis.call('ZRANGE', k_ready, 0, 0)[1]))
    look(key_in(redis.call('ZRANGEBYSCORE', k_ready, last, last, 'LIMIT', 0, 1)[1]))
  end
end
return { now, since }

-- script: apply
-- Write what the engine decided: each row whose guard holds, and new tasks. A task of a cancelled group is removed instead.
-- With new tasks, it is all or nothing.
-- ARGV: now, shape, limit, rows: msgpack [[id or name, guard: state, lease, at (false: none; nil: any that is not over),
--   rank1, owner, until; then: state, at (of a taken task: by how much later than its deadline, or than 0), expires, attempts, reason, events,
--   progress, ending: [status, error, code, which of the results, the same as base64 if it is bytes], 1 to log it,
--   error of the attempt that ends, which of the results is the whole task, if it is rewritten], ...], number of results, result,
--   ...; then nothing
--   or what follows shape and limit in a put
-- Returns: now, readied, removed, log, follow_ups, {places of the rows that were left out}, first new id; or now, 0, -1
--   and total or -1: as a put refuses
-- WITH: now tube encode decode tasks micro_queues? lifecycle relations? names? unleased? apply_rows
-- FLAGS: allow-oom

-- script: apply_put
-- The same with new tasks.
-- WITH: now tube encode decode tasks micro_queues? lifecycle relations names? unleased? find_conflict count_tasks fresh apply_rows

-- part: apply_rows
local rows, results, keys, leaving, missed = cmsgpack.unpack(ARGV[4]), tonumber(ARGV[5]), {}, {}, {}

local function holds(rec, row)
  local lease, at, owner, ends = row[3], row[4], row[6], row[7]
  if (rec.state == 'q' and 'r' or rec.state) ~= row[2] then return false end
  if (lease and rec.lease ~= lease) or (owner and rec.owner ~= owner) or (ends and ends <= now) then return false end
  if at == nil then return not rec.at or rec.at > now end
  return (rec.at or false) == at and rec.rank1 == row[5]
end

local function decided(rec, row)
  local to = {
    state = row[8], at = row[9], expires = row[10], attempts = row[11] or rec.attempts, reason = row[12],
    events = row[13], quiet = not row[16], error = row[17],
  }
  if to.state == 't' then
    local at = (rec.at or 0) + to.at
    to.at, rec.progress = at > 0 and at or nil, row[14] or rec.progress
  end
  local ending = row[15]
  if ending then
    local result = ending[4] and ARGV[5 + ending[4]]
    to.ending = { status = ending[1], error = ending[2], code = ending[3], result = result, base64 = ending[5] }
  end
  return to
end

-- Give a task new content.
local function rewrite(key, rec, new)
  local place = queue_place and queue_place(key, rec)
  leave(key, rec)
  if rec.state == 'r' then readied = readied - 1 end
  if update_lane then update_lane(key, new, rec.state, place) end
  if mark_changed then mark_changed('t' .. key) end
  save(key, new)
  set_timer(key, rec.at, new.at)
  enter(key, new)
end

for i, row in ipairs(rows) do
  keys[i] = type(row[1]) == 'string' and key_named(row[1]) or key_of(row[1])
  if row[8] == '-' then leaving[keys[i]] = true end
end
for i = 1, #keys, 1000 do
  prefetch({ unpack(keys, i, math.min(i + 999, #keys)) })
end
for i, row in ipairs(rows) do
  local rec = fetch(keys[i])
  local group = rec and rec.group_no and group_of(rec.group_no)
  local gone = group and group.state == 'x' and row[13] ~= 'ttl' and not (row[15] and row[15][1] == 'cancelled')
  -- Who guessed that it is buried did not know its group.
  local fails = group and row[8] == '!' and group.on_failure ~= 'h'
  if not rec or gone or fails or not holds(rec, row) then missed[#missed + 1] = i end
end

local refused = check_fresh and check_fresh(7 + results, leaving, #missed)
if refused then return { now, 0, -1, refused } end
gather()
local next_missed = 1
for i, row in ipairs(rows) do
  local key, left_out = keys[i], missed[next_missed] == i
  local rec = fetch(key)
  if left_out then next_missed = next_missed + 1 end
  if left_out and rec and rec.group_no and cancelled(rec) then
    change(key, rec, cancelled_with_group(rec))
  elseif row[18] and not left_out then
    rewrite(key, rec, decode(ARGV[5 + row[18]]))
  elseif not left_out then
    change(key, rec, decided(rec, row))
  end
end
flush_gathered()
local first = add_fresh and add_fresh() or 0
commit()
return { now, readied, removed, log, follow_ups, missed, first }

-- part: fresh
-- The new tasks of apply, which follow the results.
local put = nil

check_fresh = function(place, leaving, missed)
  local gone = 0
  for _ in pairs(leaving) do gone = gone + 1 end
  put = { capacity = tonumber(ARGV[place - 1]), facts = ARGV[place], runs = cmsgpack.unpack(ARGV[place + 1]), place = place + 1 }
  if missed > 0 or find_conflict(put.runs, ARGV, put.place, leaving) then return -1 end
  if put.capacity and count_tasks() + #ARGV - put.place - gone > put.capacity then
    redis.call('HSET', k_meta, 'full', '1')
    return count_tasks()
  end
end

add_fresh = function()
  local first = last + 1
  keep_relations(put.runs, put.facts)
  add_entries(put.runs, ARGV, put.place)
  return first
end
