-- Repairs for what the checks of penstock.store.redis.checks find.

-- script: repair_indexes
-- Correct the index entries of some tasks; the record decides.
-- KEYS: delivered
-- ARGV: now, shape, limit, then pairs: `tasks` and a task's key, or an index and a member of it
-- Returns: now
-- WITH: now tube encode decode tasks micro_queues? lifecycle relations unleased?
-- FLAGS: allow-oom
local INDEXES = {
  ready = k_ready, buried = k_buried, taken = k_taken, delivered = k_delivered, due = k_due, members = k_members,
}
if queue_member_of then INDEXES.queue = k_queue end

-- The index entries that a task must have: index -> name -> score.
local function places(key, rec)
  local found = { ready = {}, buried = {}, taken = {}, delivered = {}, due = {}, members = {}, queue = {} }
  if rec.state == 'r' then found.ready[member(key, rec)] = rec.rank1 end
  if rec.state == '!' then found.buried[member(key, rec)] = rec.rank1 end
  if rec.state == 't' and delivered then found.delivered[key] = rec.rank1 end
  if rec.state == 't' and not delivered then found.taken[key] = rec.owner or 0 end
  if rec.at then found.due[key] = rec.at end
  if rec.group_no then found.members[key_of(rec.group_no) .. 'm' .. key] = 0 end
  if rec.state == 'g' then found.members[unstarted_member(key, rec)] = 0 end
  if queue_member_of and (rec.state == 'r' or rec.state == 'q') then
    found.queue[queue_member_of(key, rec, rec.state == 'r' and 'h' or 'w')] = 0
  end
  return found
end

for i = 4, #ARGV, 2 do
  local index, name = ARGV[i], ARGV[i + 1]
  local key = key_in(name)
  local rec = fetch(key)
  local wanted = rec and places(key, rec) or {}
  if index == 'tasks' then
    for other, names in pairs(wanted) do
      for place, score in pairs(names) do redis.call('ZADD', INDEXES[other], score, place) end
    end
  elseif not (wanted[index] and wanted[index][name]) then
    redis.call('ZREM', INDEXES[index], name)
  end
end
return { now }

-- script: repair_counters
-- Correct counters by their difference, and forget waits of handles that are gone.
-- KEYS: meta waits
-- ARGV: by how much taken, delayed and buried are too low, how many more tasks are gone than was counted, handle, ...
-- FLAGS: allow-oom
for i, name in ipairs({ 'taken', 'delayed', 'buried', 'delete' }) do
  if tonumber(ARGV[i]) ~= 0 then redis.call('HINCRBY', k_meta, name, ARGV[i]) end
end
for i = 5, #ARGV do redis.call('HDEL', k_waits, ARGV[i]) end
return 1

-- script: repair_micro_queue
-- Recount a micro-queue from its index, and make its first tasks heads, up to a number of moves.
-- ARGV: now, shape, limit, micro-queue, by how much its count of taken tasks is too low, most moves
-- Returns: now, readied, removed, log, follow_ups, 1 if more moves may be needed
-- WITH: now tube encode decode tasks micro_queues
-- FLAGS: allow-oom
local utube, moves = ARGV[4], tonumber(ARGV[6])
local lane = lane_of(utube) or { taken = 0, heads = 0, waiting = 0, turn = 0 }
lanes[utube] = lane
lane.taken = math.max(0, lane.taken + tonumber(ARGV[5]))
lane.heads = redis.call('ZLEXCOUNT', k_queue, '[' .. lead(utube) .. 'h', '(' .. lead(utube) .. 'i')
lane.waiting = redis.call('ZLEXCOUNT', k_queue, '[' .. lead(utube) .. 'w', '(' .. lead(utube) .. 'x')
while moves > 0 do
  moves = moves - 1
  local first, worst = first_waiting(utube), worst_head(utube)
  if free_slots(lane) < 0 and worst then
    demote(lane, worst)
  elseif free_slots(lane) > 0 and first then
    promote(lane, first)
  elseif first and worst and before(first, fetch(first), worst, fetch(worst)) then
    demote(lane, worst)
  else
    break
  end
end
if fair and lane.heads > 0 then pass_turn(lane, utube) end
commit()
return { now, readied, removed, log, follow_ups, moves == 0 and 1 or 0 }

-- script: repair_group
-- Recount a group from its index, hold back tasks that are ahead of its start, and let its tasks follow it.
-- ARGV: now, shape, limit, number, key of a task that is ahead, ...
-- Returns: now, readied, removed, log, follow_ups
-- WITH: now tube encode decode tasks micro_queues? lifecycle relations
-- FLAGS: allow-oom
local no = tonumber(ARGV[4])
local group, lead = group_of(no), key_of(no)
if group then
  group.left, touched[no] = redis.call('ZLEXCOUNT', k_members, '[' .. lead .. 'm', '(' .. lead .. 'n'), true
  group.total = math.max(group.total, group.left)
  if group.left > 0 and (group.state == 'd' or group.state == 'c') then
    group.state, group.over = group.state == 'd' and 's' or 'x', 0
    redis.call('ZREM', k_kept, 'g' .. lead)
  end
  if live(group) then redis.call('HSETNX', k_groups, 'n' .. group.name, no) else unname(no, group) end
  for i = 5, #ARGV do
    local rec = group.state == 'o' and fetch(ARGV[i])
    if rec and rec.state ~= 'g' and rec.state ~= '!' then
      change(ARGV[i], rec, {
        state = 'g', events = '', at = rec.at, expires = rec.expires, attempts = rec.attempts, reason = rec.reason,
      })
    end
  end
  if group.state == 's' or group.state == 'x' then redis.call('ZADD', k_moving, no, no) end
  if group.over > 0 then redis.call('ZADD', k_kept, 'NX', group.over, 'g' .. lead) end
  end_group(no, group)
end
commit()
return { now, readied, removed, log, follow_ups }

-- script: repair_relations
-- Correct the addresses, outcomes and groups of some tasks; the task decides.
-- ARGV: now, shape, limit, then pairs: `task` and its key, `address` and one that leads to no task, or `outcome` and the
--   name that it must have in kept
-- Returns: now, readied, removed, log, follow_ups
-- WITH: now tube encode decode tasks micro_queues? lifecycle relations unleased?
-- FLAGS: allow-oom
-- Take a task out of a group that does not exist; if it waited for the group's start, it becomes ready with the next advance.
local function leave_missing_group(key, rec)
  local timer = rec.at
  leave(key, rec)
  redis.call('ZREM', k_members, key_of(rec.group_no) .. 'm' .. key)
  rec.group, rec.group_no = nil, nil
  if rec.state == 'g' then rec.state, rec.at = '~', now end
  set_timer(key, timer, rec.at)
  enter(key, rec)
  save(key, rec)
  if mark_changed then mark_changed('t' .. key) end
end

for i = 4, #ARGV, 2 do
  local rec = ARGV[i] == 'task' and fetch(ARGV[i + 1])
  if rec then
    local key = ARGV[i + 1]
    if rec.address then
      redis.call('HSET', k_addresses, rec.address, key)
      redis.call('HDEL', k_outcomes, key)
      redis.call('ZREM', k_kept, kept_name(key, rec.address)) -- else the address would be forgotten with it
    end
    if rec.group_no and not group_of(rec.group_no) then leave_missing_group(key, rec) end
  elseif ARGV[i] == 'address' then
    local key = redis.call('HGET', k_addresses, ARGV[i + 1])
    local holder = key and fetch(key)
    local held = holder and holder.address == ARGV[i + 1]
    if key and not held and redis.call('HEXISTS', k_outcomes, key) == 0 then
      redis.call('HDEL', k_addresses, ARGV[i + 1])
    end
  elseif ARGV[i] == 'outcome' then
    redis.call('ZADD', k_kept, 'NX', now, ARGV[i + 1])
  end
end
commit()
return { now, readied, removed, log, follow_ups }

-- script: repair_unleased
-- Make a task one that its kind can have, as penstock.core.soundness says. Indexes and counters are repaired afterwards.
-- ARGV: now, shape, limit, key
-- Returns: now
-- WITH: now tube encode decode tasks unleased
-- FLAGS: allow-oom
local rec = fetch(ARGV[4])
if rec then
  if clocked or rec.state ~= 't' then
    rec.state, rec.rank1 = 'r', clocked and rec.taken or 0
  end
  rec.owner = nil
  save(ARGV[4], rec)
  if mark_changed then mark_changed('t' .. ARGV[4]) end
end
return { now }

-- script: repair_unreadable
-- Bury tasks whose stored bytes cannot be read, and give these, and those that another script buried, their address and
-- group back. In a tube without leases they become tasks that were never handed out. Indexes and counters are repaired
-- afterwards.
-- KEYS: addresses members
-- ARGV: now, shape, limit, then of each: key, address (or public id) or '', number and name of its group or '' and ''
-- Returns: now
-- WITH: now tube encode decode tasks unleased?
-- FLAGS: allow-oom
for i = 4, #ARGV, 4 do
  local key, value = ARGV[i], redis.call('HGET', k_tasks, ARGV[i])
  local rec = value and decode(value)
  if value and not rec then
    rec = unreadable(value)
    if delivered then
      rec.state, rec.reason = 'r', nil
      if ARGV[i + 1] == '' then name_reply(key, rec) end
    else
      redis.call('HINCRBY', k_meta, 'bury', 1)
    end
  end
  if rec then
    if redis.call('HGET', k_addresses, ARGV[i + 1]) == key then rec.address = ARGV[i + 1] end
    local no = tonumber(ARGV[i + 2])
    if no and redis.call('ZSCORE', k_members, key_of(no) .. 'm' .. key) then rec.group_no, rec.group = no, ARGV[i + 3] end
    save(key, rec)
    if mark_changed then mark_changed('t' .. key) end
  end
end
return { now }

-- script: repair_last_message_id
-- Raise the last message id of a tube to at least this one.
-- ARGV: ms, seq
-- WITH: raise_message_id
-- FLAGS: allow-oom
raise_message_id(ARGV[1], ARGV[2])
return 1
