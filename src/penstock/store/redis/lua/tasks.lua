-- Reading and changing tasks, together with all indexes and counters that depend on them.

-- part: tasks
-- members: a sorted set, all scores 0, of group, m, key for each task of a group, and group, u, rank, key for those that wait
-- for its start.
-- KEYS: tasks ready due buried taken errors members
local second = string.find(ARGV[2], '2', 1, true) ~= nil
local fetched = {}
log = {}

-- Decode a task; false if there is none, or if it cannot be read: then the client that reads the log repairs the tube.
local function readable(key, value)
  local rec = value and decode(value)
  if value and not rec and not delivered then log_value('', id_of(key), '') end
  return rec
end

local function fetch(key)
  local rec = fetched[key]
  if rec == nil then
    rec = readable(key, redis.call('HGET', k_tasks, key))
    fetched[key] = rec
  end
  return rec
end

-- Read many tasks at once.
local function prefetch(keys)
  for i, value in ipairs(read_many(k_tasks, keys)) do
    if fetched[keys[i]] == nil then fetched[keys[i]] = readable(keys[i], value) end
  end
end

-- Writes to the tasks and their indexes, which flush makes with one command each. A script must not change a task twice
-- before it flushes, because removals come first.
local removals, additions = {}, {}

local function write(gathered, command, index, one, other)
  local words = gathered[index]
  if not words then
    words = { command = command }
    gathered[index] = words
  end
  local n = #words
  words[n + 1], words[n + 2] = one, other
end

local function remove_from(command, index, name) write(removals, command, index, name) end

local function add_to(command, index, one, other) write(additions, command, index, one, other) end

local function flush()
  for _, gathered in ipairs({ removals, additions }) do
    for index, words in pairs(gathered) do call_with(words.command, index, words) end
  end
  removals, additions = {}, {}
end

local function save(key, rec) add_to('HSET', k_tasks, key, encode(rec)) end

-- A task's member in the ready and buried indexes, whose score is the first rank.
local function member(key, rec) return second and sortable(rec.rank2) .. key or key end

-- The member of a task that waits for the start of its group.
local function unstarted_member(key, rec)
  return key_of(rec.group_no) .. 'u' .. sortable(rec.rank1) .. (second and sortable(rec.rank2) or '') .. key
end

local COUNTER = { t = 'taken', ['~'] = 'delayed', g = 'delayed', ['!'] = 'buried' }

local function leave(key, rec)
  if rec.state == 'r' then
    if not in_order then remove_from('ZREM', k_ready, member(key, rec)) end
  elseif rec.state == '!' then
    remove_from('ZREM', k_buried, member(key, rec))
  elseif rec.state == 't' then
    remove_from('ZREM', delivered or k_taken, key)
  elseif rec.state == 'g' then
    remove_from('ZREM', k_members, unstarted_member(key, rec))
  end
  if COUNTER[rec.state] then count(COUNTER[rec.state], -1) end
end

local function enter(key, rec)
  if rec.state == 'r' then
    if not in_order then add_to('ZADD', k_ready, rec.rank1, member(key, rec)) end
    readied = readied + 1
  elseif rec.state == '!' then
    add_to('ZADD', k_buried, rec.rank1, member(key, rec))
  elseif rec.state == 't' and delivered then
    add_to('ZADD', delivered, rec.rank1, key)
  elseif rec.state == 't' then
    add_to('ZADD', k_taken, rec.owner, key)
  elseif rec.state == 'g' then
    add_to('ZADD', k_members, 0, unstarted_member(key, rec))
  end
  if COUNTER[rec.state] then count(COUNTER[rec.state], 1) end
end

local function set_timer(key, old, new)
  if new == old then return end
  if new then add_to('ZADD', k_due, new, key) else remove_from('ZREM', k_due, key) end
end

log_value = function(events, id, value)
  local last = #log
  log[last + 1], log[last + 2], log[last + 3] = events, id, value
end

local function log_change(events, key, rec) log_value(events, id_of(key), encode(rec)) end

-- Change a task as decided: `to` has the next state, its events and fields.
local function change(key, rec, to)
  local before, timer = rec.state, rec.at
  if to.error then -- stored apart from the task, which is flagged: see penstock.core.attempts
    local stored = rec.failed and redis.call('HGET', k_errors, key)
    local kept = stored and cmsgpack.unpack(stored) or {}
    kept[#kept + 1] = to.error
    if #kept > 5 then table.remove(kept, 1) end
    -- Written at once if the outcome is about to copy them.
    if to.state == '-' then redis.call('HSET', k_errors, key, cmsgpack.pack(kept)) else add_to('HSET', k_errors, key, cmsgpack.pack(kept)) end
    rec.failed = true
    if mark_changed then mark_changed('x' .. key) end
  end
  leave(key, rec)
  rec.state, rec.at, rec.attempts, rec.reason = to.state, to.at, to.attempts, to.reason
  if to.state ~= '-' then rec.expires = to.expires end
  if to.state ~= 't' then rec.owner = nil end
  if update_micro_queue then update_micro_queue(key, rec, before) end
  set_timer(key, timer, rec.at)
  if rec.state == '-' then
    remove_from('HDEL', k_tasks, key)
    fetched[key] = false
    removed = removed + 1
    if rec.group_no then remove_from('ZREM', k_members, key_of(rec.group_no) .. 'm' .. key) end
  else
    save(key, rec)
  end
  -- A touch changes the lease only.
  if mark_changed and not (before == 't' and rec.state == 't') then mark_changed('t' .. key) end
  enter(key, rec)
  for event in string.gmatch(to.events, '%a+') do
    if event == 'undone' then count('take', -1) else count(event, 1) end
  end
  if task_removed and rec.state == '-' then task_removed(key, rec, to) end
  if rec.failed and rec.state == '-' then
    redis.call('HDEL', k_errors, key)
    if mark_changed then mark_changed('x' .. key) end
  end
end

-- Write everything that the script has collected.
local function commit()
  flush()
  if save_outcomes then save_outcomes() end
  if save_groups then save_groups() end
  if save_last then save_last() end
  if save_micro_queues then save_micro_queues() end
  finish()
end
