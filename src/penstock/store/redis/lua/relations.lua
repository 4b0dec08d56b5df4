-- part: no_relations
-- For scripts without the relations part: refuse a tube whose tasks have addresses, replies or groups.
if meta[5] then return { -2 } end

-- part: relations
-- Keeps addresses, outcomes, replies and groups in step with every change of a task, as decided by penstock.core.
-- members: a sorted set, all scores 0, of group, m, key for each task of a group, and group, u, rank, key for those that wait
-- for its start. moving: numbers of groups whose tasks must still follow a start or a cancel.
-- `facts` of meta: how long outcomes are kept; then, after its length, msgpack [the same, the tube's name, spec of a task
-- without options], of a shard, which has no name, also number of shards, its place among them, its floor; then the texts
-- of a task without options.
-- KEYS: members moving
local STATUS = { ack = 'done', fail = 'failed', delete = 'deleted', ttl = 'expired' }
local facts, pending_work, ended, posted, notify_waiters = nil, {}, {}, false, false

local function tube_facts()
  facts = facts or read_facts(meta[5])
  return facts
end

local function unstarted_member(key, rec)
  local place = sortable(rec.rank1)
  if second then place = place .. sortable(rec.rank2) end
  return key_of(rec.group_no) .. 'u' .. place .. key
end

hold = function(key, rec) add_to('ZADD', k_members, 0, unstarted_member(key, rec)) end

unhold = function(key, rec) remove_from('ZREM', k_members, unstarted_member(key, rec)) end

-- Whether a task's group was cancelled, though the task was not removed yet.
cancelled = function(rec)
  local group = rec.group_no and group_of(rec.group_no)
  return group and group.state == 'x'
end

-- Adapt a change to the state of the task's group.
apply_group = function(rec, to)
  local group = group_of(rec.group_no)
  if not group or to.state == '-' then return to end
  if group.state == 'x' then return cancelled_with_group(rec) end
  if group.state == 'o' and to.state == 'r' then to.state = 'g' end
  if to.state == '!' and group.on_failure ~= 'h' then
    local ending = { status = 'failed', error = to.reason or 'buried' }
    local events = string.gsub(to.events, 'bury', 'fail')
    return { state = '-', events = events, attempts = to.attempts, ending = ending, error = to.error }
  end
  return to
end

local function unname(no, group)
  if tonumber(redis.call('HGET', k_groups, 'n' .. group.name) or 0) == no then
    redis.call('HDEL', k_groups, 'n' .. group.name)
  end
end

-- End a group once none of its tasks is left; its work is put at the end of the step.
local function end_group(no, group)
  if group.left > 0 or (group.state ~= 's' and group.state ~= 'x') then return end
  local name, started = key_of(no), group.state == 's'
  group.state, group.over = started and 'd' or 'c', now + tube_facts()[1]
  pending_work[#pending_work + 1] = redis.call('HGET', k_groups, (started and 'e' or 'c') .. name) or nil
  redis.call('HDEL', k_groups, 'e' .. name, 'c' .. name)
  redis.call('ZREM', k_moving, no)
  redis.call('ZADD', k_kept, group.over, 'g' .. name)
  unname(no, group)
  ended[#ended + 1], notify_waiters = no, true
end

-- Reply, and let the next link of a chain follow: its client makes the task, see penstock.core.chain.
local function send_reply(key, rec, ending)
  local to = reply_tube(rec)
  if to ~= rec.reply_to and ending.status == 'done' then
    local result = ending.base64 and '"' .. ending.base64 .. '"' or ending.result or 'null'
    post_reply('>', struct.pack('>I4', #result) .. result .. rec.payload)
    posted = true
  end
  if to == '' then return end
  local text = reply_of(public_id(id_of(key), tube_facts()), rec, ending)
  if to == tube_facts()[2] then
    pending_work[#pending_work + 1] = text
  else
    post_reply(to, text)
    posted = true
  end
end

-- A task was removed: keep its outcome, reply, and end its group if it was the last one.
task_removed = function(key, rec, to)
  local ending = to.ending or { status = STATUS[string.match(to.events, '%a+$')] }
  if rec.address or ending.status == 'failed' or ending.status == 'cancelled' then
    local errors = rec.failed and redis.call('HGET', k_errors, key)
    keep_outcome(key, rec.address or '', ending, now + tube_facts()[1], errors)
    notify_waiters = true
  end
  if rec.reply_to then send_reply(key, rec, ending) end
  local group = rec.group_no and group_of(rec.group_no)
  if group then
    remove_from('ZREM', k_members, key_of(rec.group_no) .. 'm' .. key)
    group.left, touched[rec.group_no] = group.left - 1, true
    if string.find(to.events, 'fail', 1, true) then
      group.failed = group.failed + 1
      if group.on_failure == 'x' and (group.state == 'o' or group.state == 's') then
        group.state = 'x'
        count('turned', 1)
        unname(rec.group_no, group)
        if group.left > 0 then redis.call('ZADD', k_moving, rec.group_no, rec.group_no) end
      end
    end
    end_group(rec.group_no, group)
  end
end

groups_are_turning = function() return redis.call('EXISTS', k_moving) == 1 end

-- The transition of a task whose group has started.
local function group_started(rec)
  local delayed = rec.at and rec.at ~= rec.expires and rec.at > now
  return {
    state = delayed and '~' or 'r', events = '', at = delayed and rec.at or rec.expires, expires = rec.expires,
    attempts = rec.attempts, reason = rec.reason,
  }
end

local function follow_group(no, group, most)
  local lead, started = key_of(no), group.state == 's'
  local low, high = '[' .. lead .. (started and 'u' or 'm'), '(' .. lead .. (started and 'v' or 'n')
  local found, keys = redis.call('ZRANGEBYLEX', k_members, low, high, 'LIMIT', 0, most), {}
  for i, name in ipairs(found) do keys[i] = key_in(name) end
  if #keys > 0 then prefetch(keys) end
  gather()
  for i, name in ipairs(found) do
    local key = keys[i]
    local rec = fetch(key)
    if not rec or (started and rec.state ~= 'g') then
      remove_from('ZREM', k_members, name)
    else
      change(key, rec, started and group_started(rec) or cancelled_with_group(rec))
    end
  end
  flush_gathered()
  return #found
end

-- Apply the start or cancel of groups to a limited number of tasks. Cancelled ones block nobody, so fewer of these are
-- removed: two hundred take some 3 ms.
follow_groups = function(most, most_cancelled)
  local done, place, going = 0, 0, most_cancelled or 200
  while done < most do
    local no = tonumber(redis.call('ZRANGE', k_moving, place, place)[1])
    if not no then break end
    local group, wanted, found = group_of(no), most - done, 0
    local gone = group and group.state == 'x'
    if gone then wanted = math.min(wanted, going) end
    if wanted > 0 and (gone or group and group.state == 's') then found = follow_group(no, group, wanted) end
    if found < wanted then redis.call('ZREM', k_moving, no) else place = place + 1 end
    if gone then going = going - found end
    done = done + math.max(1, found) -- a group without tasks counts too, so that the loop is bounded
  end
end

put_pending_work = function()
  if #pending_work == 0 then return end
  for i, payload in ipairs(pending_work) do pending_work[i] = tube_facts().texts .. payload end
  add_entries({ { tube_facts()[3], #pending_work } }, pending_work, 0, true)
  pending_work = {}
end

finish_relations = function()
  put_pending_work()
  outcomes.flush()
  save_groups()
  if notify_waiters then awaited = redis.call('HDEL', k_meta, 'awaited') == 1 end
  local found = (posted or left_behind()) and outbox_entries(0) or {}
  if #ended > 0 or #found > 0 then follow_ups = { ended, found } end
end
