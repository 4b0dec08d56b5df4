-- Part: what ties tasks to something beside them, wherever tasks change: kept as penstock.core says.
-- KEYS: members moving
-- members: one sorted set, all scores 0: group, m, key of each of its tasks; group, u, place, key of those that wait for
-- its start. moving: groups whose tasks must follow a start or a cancel, by number.
-- `facts` of meta: msgpack [how long ends are kept, the tube's name, spec of a task without options; of a shard: how many
-- there are, which it is, its floor, and no name].
local STATUS = { ack = 'done', fail = 'failed', delete = 'deleted', ttl = 'expired' }
local facts, works, ended, posted, awaitable = nil, {}, {}, false, false

local function tube_facts()
  facts = facts or cmsgpack.unpack(head[5])
  return facts
end

local function waiting(key, rec)
  local place = sortable(rec.rank1)
  if second then place = place .. sortable(rec.rank2) end
  return key_of(rec.group_no) .. 'u' .. place .. key
end

hold = function(key, rec) redis.call('ZADD', k_members, 0, waiting(key, rec)) end

unhold = function(key, rec) redis.call('ZREM', k_members, waiting(key, rec)) end

-- Whether a task is gone with its group, though it was not removed yet.
cancelled = function(rec)
  local group = rec.group_no and group_of(rec.group_no)
  return group and group.state == 'x'
end

-- What a change becomes in the task's group.
gate = function(rec, to)
  local group = group_of(rec.group_no)
  if not group or to.state == '-' then return to end
  if group.state == 'x' then return removed_by(rec, 'delete') end
  if group.state == 'o' and to.state == 'r' then to.state = 'g' end
  return to
end

local function unname(no, group)
  if tonumber(redis.call('HGET', k_groups, 'n' .. group.name) or 0) == no then
    redis.call('HDEL', k_groups, 'n' .. group.name)
  end
end

-- Call a group over if nothing is left of it, once; its work is put at the end of the step.
local function end_group(no, group)
  if group.left > 0 or (group.state ~= 's' and group.state ~= 'x') then return end
  local name, started = key_of(no), group.state == 's'
  group.state, group.over = started and 'd' or 'c', now + tube_facts()[1]
  works[#works + 1] = redis.call('HGET', k_groups, (started and 'e' or 'c') .. name) or nil
  redis.call('HDEL', k_groups, 'e' .. name, 'c' .. name)
  redis.call('ZREM', k_moving, no)
  redis.call('ZADD', k_kept, group.over, 'g' .. name)
  unname(no, group)
  ended[#ended + 1], awaitable = no, true
end

local function arrived(key, rec, group)
  if rec.address then
    supersede(rec.address)
    redis.call('HSET', k_addresses, rec.address, key)
  end
  if group then
    group.total, group.left, touched[rec.group_no] = group.total + 1, group.left + 1, true
    redis.call('ZADD', k_members, 0, key_of(rec.group_no) .. 'm' .. key)
  end
end

local function reply(key, rec, ending)
  local text = reply_of(public_id(id_of(key), tube_facts()), rec, ending)
  if rec.reply_to == tube_facts()[2] then
    works[#works + 1] = text
  else
    post(rec.reply_to, text)
    posted = true
  end
end

-- A task is gone: keep its outcome, reply, and end its group after the last one.
left = function(key, rec, to)
  local ending = to.ending or { status = STATUS[string.match(to.events, '%a+$')] }
  if rec.address then
    sweep(2) -- so that outcomes never outnumber what the retention asks for, even where nobody advances
    keep(key, rec.address, ending, now + tube_facts()[1])
    awaitable = true
  end
  if rec.reply_to then reply(key, rec, ending) end
  local group = rec.group_no and group_of(rec.group_no)
  if group then
    take_out('ZREM', k_members, key_of(rec.group_no) .. 'm' .. key)
    group.left, touched[rec.group_no] = group.left - 1, true
    end_group(rec.group_no, group)
  end
end

is_moving = function() return redis.call('EXISTS', k_moving) == 1 end

-- What the start of its group makes of a task that waited for it.
local function followed(rec)
  local delayed = rec.at and rec.at ~= rec.expires and rec.at > now
  return {
    state = delayed and '~' or 'r', events = '', at = delayed and rec.at or rec.expires, expires = rec.expires,
    attempts = rec.attempts, reason = rec.reason,
  }
end

local function follow_one(no, group, most)
  local lead, started = key_of(no), group.state == 's'
  local low, high = '[' .. lead .. (started and 'u' or 'm'), '(' .. lead .. (started and 'v' or 'n')
  local found, keys = redis.call('ZRANGEBYLEX', k_members, low, high, 'LIMIT', 0, most), {}
  for i, name in ipairs(found) do keys[i] = key_in(name) end
  if #keys > 0 then prefetch(keys) end
  if not started then leavers = {} end -- all of them go, by few commands together
  for i, name in ipairs(found) do
    local key = keys[i]
    local rec = fetch(key)
    if not rec or (started and rec.state ~= 'g') then
      redis.call('ZREM', k_members, name)
    else
      change(key, rec, started and followed(rec) or removed_by(rec, 'delete'))
    end
  end
  if leavers then take_out_leavers() end
  return #found
end

-- Tasks follow their groups' records, at most so many, and so many of them cancelled ones: these are in nobody's way, and
-- two hundred are some 3 ms of the server's time.
follow = function(most, most_cancelled)
  local done, place, going = 0, 0, most_cancelled or 200
  while done < most do
    local no = tonumber(redis.call('ZRANGE', k_moving, place, place)[1])
    if not no then break end
    local group, wanted, found = group_of(no), most - done, 0
    local gone = group and group.state == 'x'
    if gone then wanted = math.min(wanted, going) end
    if wanted > 0 and (gone or group and group.state == 's') then found = follow_one(no, group, wanted) end
    if found < wanted then redis.call('ZREM', k_moving, no) else place = place + 1 end
    if gone then going = going - found end
    done = done + math.max(1, found) -- one without tasks counts too: the loop is bounded
  end
end

put_works = function()
  for _, payload in ipairs(works) do add_plain(tube_facts()[3], payload) end
  works = {}
end

follow_up = function()
  put_works()
  save_groups()
  if awaitable then awaited = redis.call('HDEL', k_meta, 'awaited') == 1 end
  local found = (posted or left_behind()) and letters(0) or {}
  if #ended > 0 or #found > 0 then follows = { ended, found } end
end
