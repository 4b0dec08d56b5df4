-- Reading tasks for the engine, and writing what it decided.

-- script: read_tasks
-- Read tasks by key or by name, or from an index in its order; and the groups of these tasks.
-- KEYS: tasks addresses ready buried delivered members
-- ARGV: now, shape, limit, then `tasks`, key, ...; or `addresses`, name, ...; or `members`, lowest, highest and how many; or
--   another index, the place to begin at (negative: from its end) and how many
-- Returns: now, then what with_groups returns
-- WITH: now tube encode decode unleased? groups read_groups with_groups
-- FLAGS: no-writes
local from, keys = ARGV[4], {}
if from == 'tasks' then
  for i = 5, #ARGV do keys[i - 4] = ARGV[i] end
elseif from == 'addresses' then
  for i = 5, #ARGV do
    local key = key_named and key_named(ARGV[i]) or redis.call('HGET', k_addresses, ARGV[i])
    keys[#keys + 1] = key or nil
  end
elseif from == 'members' then
  for i, name in ipairs(redis.call('ZRANGEBYLEX', k_members, ARGV[5], ARGV[6], 'LIMIT', 0, ARGV[7])) do keys[i] = key_in(name) end
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
-- Tasks by their keys, as {id, record, ...}, and the groups that they are in, as stored_group returns them.
local function with_groups(keys)
  local tasks, found, listed = {}, {}, {}
  for i, value in ipairs(read_many(k_tasks, keys)) do
    local no = value and group_in(value)
    if value then tasks[#tasks + 1], tasks[#tasks + 2] = id_of(keys[i]), value end
    if no and no > 0 and not listed[no] and group_of(no) then found[#found + 1], listed[no] = stored_group(no), true end
  end
  return tasks, found
end

-- script: held_leases
-- Check whether a session holds these leases. No session holds the remaining tasks of a cancelled group.
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

-- script: ready_since
-- When the longest-waiting ready task was put or last taken, judged by two tasks only: the one that is taken next, and the
-- first with the highest first rank. For messages, that of the first message that was not handed out.
-- KEYS: tasks ready
-- Returns: now, that time or 0 if none is ready
-- WITH: now tube encode decode unleased?
-- FLAGS: no-writes
local since = 0
local function look(key)
  local value = key and redis.call('HGET', k_tasks, key)
  local rec = value and decode(value)
  local at = rec and math.max(rec.created, rec.taken or 0)
  if at and (since == 0 or at < since) then since = at end
end
if in_order then
  local id = tonumber(redis.call('HGET', k_meta, 'handed') or 0)
  local top = math.min(tonumber(meta[1]), id + 1000) -- others may have been removed
  while since == 0 and id < top do
    id = id + 1
    look(key_of(id))
  end
end
local last = redis.call('ZRANGE', k_ready, -1, -1, 'WITHSCORES')[2]
if last then
  look(key_in(redis.call('ZRANGE', k_ready, 0, 0)[1]))
  look(key_in(redis.call('ZRANGEBYSCORE', k_ready, last, last, 'LIMIT', 0, 1)[1]))
end
return { now, since }

-- script: write_unchanged
-- Write fields of hashes, each unless it has changed since it was read: what checks.py has computed.
-- KEYS: tasks addresses outcomes groups waits micro_queues
-- ARGV: now, shape, limit, then of each field: part, field, `=` and the value that was read or '' for none, the same of the
--   value to write, ...
-- Returns: now
-- WITH: now tube
-- FLAGS: allow-oom
local MARKED = { tasks = 't', outcomes = 'o' }
for i = 4, #ARGV, 4 do
  local part, field, before, after = unpack(ARGV, i, i + 3)
  local key = string.sub(k_meta, 1, -5) .. part
  local stored = redis.call('HGET', key, field)
  if (stored and '=' .. stored or '') == before then
    if after == '' then redis.call('HDEL', key, field) else redis.call('HSET', key, field, string.sub(after, 2)) end
    if mark_changed and MARKED[part] then mark_changed(MARKED[part] .. field) end
    readied = 1 -- maybe
  end
end
finish()
return { now }

-- script: apply
-- Write what the engine decided: groups, each row whose guard holds, entries for other tubes, and work of this tube.
-- ARGV: now, shape, limit,
--   rows: msgpack [[id or name, guard: state, lease, at (false: none; nil: any in the future), rank1, owner, until, state of
--     its group; then: state, at (of a taken task: the difference to its deadline, or to 0), expires, attempts, reason,
--     events, progress, ending that is kept: [status, error, code, which of the results], error of the attempt that ends,
--     which of the results is the whole task, if it is rewritten; 0 to write it again as it is], ...],
--   groups: msgpack, see group_holds, posts: msgpack [[name of the tube, which of the results], ...], 1 for all or nothing, retention in ms, number of
--   results, result, ...; then nothing, or number of tasks that are work, and what follows limit in a put
-- Returns: now, readied, 0, log of tasks that cannot be read, {places of the rows that were left out}, first new id, {entry
--   of the outbox, ...}, for messages also the ms and seq before the first message id; or now, 0, -1, and -1 if a guard failed, or the number of tasks if the tube is full
-- WITH: now tube encode decode tasks micro_queues? groups write_groups outcomes outbox new_record add_entries unleased?
-- WITH: apply_rows
-- FLAGS: allow-oom

-- script: apply_put
-- As apply, with new tasks from callers.
-- WITH: now tube encode decode tasks micro_queues? groups write_groups outcomes outbox new_record add_entries unleased?
-- WITH: find_conflict count_tasks apply_rows

-- part: apply_rows
local rows, group_rows, posts = cmsgpack.unpack(ARGV[4]), cmsgpack.unpack(ARGV[5]), cmsgpack.unpack(ARGV[6])
local keys, leaving, missed, going, results = {}, {}, {}, 0, tonumber(ARGV[9])

local function holds(rec, row)
  local lease, at, owner, ends = row[3], row[4], row[6], row[7]
  if (rec.state == 'q' and 'r' or rec.state) ~= row[2] then return false end
  if (lease and rec.lease ~= lease) or (owner and rec.owner ~= owner) or (ends and ends <= now) then return false end
  if row[8] and (group_of(rec.group_no) or {}).state ~= row[8] then return false end
  if at == nil then return not rec.at or rec.at > now end
  return (rec.at or false) == at and rec.rank1 == row[5]
end

local function decided(rec, row)
  local to = {
    state = row[9], at = row[10], expires = row[11], attempts = row[12] or rec.attempts, reason = row[13], events = row[14],
    error = row[17], kept_until = now + ARGV[8],
  }
  if to.state == 't' then
    local at = (rec.at or 0) + to.at
    to.at, rec.progress = at > 0 and at or nil, row[15] or rec.progress
  end
  local ending = row[16]
  if ending then
    to.ending = { status = ending[1], error = ending[2], code = ending[3], result = ending[4] and ARGV[9 + ending[4]] }
  end
  return to
end

-- Replace the content of a task, and write all its entries in indexes again.
local function rewrite(key, rec, new)
  local place = queue_place and queue_place(key, rec)
  if new.state == 'q' then new.state = 'r' end
  leave(key, rec)
  if rec.state == 'r' then readied = readied - 1 end
  if update_micro_queue then update_micro_queue(key, new, rec.state, place) end
  if mark_changed then mark_changed('t' .. key) end
  save(key, new)
  set_timer(key, not new.at, new.at)
  if new.group_no then add_to('ZADD', k_members, 0, key_of(new.group_no) .. 'm' .. key) end
  enter(key, new)
end

-- A group row: number, guard: state, how many are left (false: more than leave now); then: changes of total, left and
-- failed, state, until or 0, on_failure, whether its tasks must follow it, which of the results is its end work, its
-- cancel work; nil for what does not change.
local function group_holds(row)
  local group = group_of(row[1])
  if not group or group.state ~= row[2] then return false end
  if row[3] then return group.left == row[3] end
  return group.left + row[5] > 0
end

local function write_group(row)
  local no, group, key = row[1], group_of(row[1]), key_of(row[1])
  local was_live, name, over = live(group), 'n' .. group.name, row[8]
  group.total, group.left, group.failed = group.total + row[4], group.left + row[5], group.failed + row[6]
  group.state, group.over, group.on_failure = row[7] or group.state, over or group.over, row[9] or group.on_failure
  touched[no] = true
  count('turned', row[7] and 1 or 0) -- so that check notices the change
  if was_live and not live(group) and tonumber(redis.call('HGET', k_groups, name)) == no then
    redis.call('HDEL', k_groups, name)
  elseif live(group) then
    redis.call('HSETNX', k_groups, name, no)
  end
  if row[10] then
    redis.call('ZADD', k_moving, no, no)
  elseif row[10] == false then
    redis.call('ZREM', k_moving, no)
  end
  for i, letter in ipairs({ 'e', 'c' }) do
    if row[10 + i] then redis.call('HSET', k_groups, letter .. key, ARGV[9 + row[10 + i]]) end
  end
  if over and over > 0 then
    redis.call('HDEL', k_groups, 'e' .. key, 'c' .. key)
    redis.call('ZADD', k_kept, over, 'g' .. key)
    notify_waiters()
  elseif over then
    redis.call('ZREM', k_kept, 'g' .. key)
  end
end

for i, row in ipairs(rows) do
  keys[i] = type(row[1]) == 'string' and key_named(row[1]) or key_of(row[1])
  if row[9] == '-' then leaving[keys[i]], going = true, going + 1 end
end
prefetch(keys)
for i, row in ipairs(rows) do
  local rec = fetch(keys[i])
  if not rec or not holds(rec, row) then missed[#missed + 1] = i end
end
local whole = ARGV[7] == '1' and #missed == 0
for _, row in ipairs(group_rows) do whole = whole and group_holds(row) end
if ARGV[7] == '1' and not whole then return { now, 0, -1, -1 } end

local fresh = 10 + results -- where new tasks begin
local runs = ARGV[fresh] and cmsgpack.unpack(ARGV[fresh + 3])
if find_conflict then
  if find_conflict(runs, ARGV, fresh + 3, leaving) then return { now, 0, -1, -1 } end
  local capacity = tonumber(ARGV[fresh + 1])
  if capacity and count_tasks() + #ARGV - fresh - 3 - ARGV[fresh] - going > capacity then
    redis.call('HSET', k_meta, 'full', '1')
    return { now, 0, -1, count_tasks() }
  end
end
for _, row in ipairs(group_rows) do write_group(row) end
local next_missed = 1
for i, row in ipairs(rows) do
  if missed[next_missed] == i then
    next_missed = next_missed + 1
  elseif row[18] then
    rewrite(keys[i], fetch(keys[i]), decode(row[18] > 0 and ARGV[9 + row[18]] or redis.call('HGET', k_tasks, keys[i])))
  else
    change(keys[i], fetch(keys[i]), decided(fetch(keys[i]), row))
  end
end
flush() -- before new tasks get the addresses of others that leave
local first = last + 1
if find_conflict then keep_relations(runs, ARGV[fresh + 2]) end
if runs then add_entries(runs, ARGV, fresh + 3) end
for _, one in ipairs(posts) do post(one[1], ARGV[9 + one[2]]) end
commit()
return { now, readied, 0, log, missed, first, #posts > 0 and outbox_entries(0) or {}, unpack(given_mark or {}) }
