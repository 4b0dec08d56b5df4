-- Part: tasks read and changed, with every index and counter that hangs on them.
-- KEYS: tasks ready due buried taken
-- ARGV[2] is the tube's shape: `2` when a second rank stands before the id in the ready and buried indexes.
local second = string.find(ARGV[2], '2', 1, true) ~= nil
local fetched, log = {}, {}

-- The task of these bytes; false where there are none. Those that cannot be read are buried at once, as the data of a task
-- that is there from the next fetch on; whoever reads the log mends what hung on them. Unleased kinds bury nothing.
local function readable(key, value)
  if not value then return false end
  local rec = decode(value)
  if not rec and not delivered then bury_unreadable(key, value) end
  return rec or nil
end

local function fetch(key)
  local rec = fetched[key]
  if rec == nil then
    rec = readable(key, redis.call('HGET', k_tasks, key))
    fetched[key] = rec
  end
  return rec
end

-- Read many at once, up to a thousand.
local function prefetch(keys)
  for i, value in ipairs(redis.call('HMGET', k_tasks, unpack(keys))) do
    if fetched[keys[i]] == nil then fetched[keys[i]] = readable(keys[i], value) end
  end
end

-- Take a name out of a hash or an index: at once, or with others where a script gathers its `leavers`.
local function take_out(command, index, name)
  local names = leavers and leavers[index]
  if not leavers then
    redis.call(command, index, name)
  elseif not names then
    leavers[index] = { command, index, name }
  else
    names[#names + 1] = name
    if #names > 1000 then
      redis.call(unpack(names))
      leavers[index] = nil
    end
  end
end

local function take_out_leavers()
  for _, names in pairs(leavers) do redis.call(unpack(names)) end
  leavers = nil
end

local function save(key, rec) redis.call('HSET', k_tasks, key, encode(rec)) end

-- Its name in the ready and buried indexes, whose score is the first rank.
local function member(key, rec) return second and sortable(rec.rank2) .. key or key end

local COUNTER = { t = 'taken', ['~'] = 'delayed', g = 'delayed', ['!'] = 'buried' }

local function leave(key, rec)
  if rec.state == 'r' then
    take_out('ZREM', k_ready, member(key, rec))
  elseif rec.state == '!' then
    redis.call('ZREM', k_buried, member(key, rec))
  elseif rec.state == 't' then
    take_out('ZREM', delivered or k_taken, key)
  elseif rec.state == 'g' then
    unhold(key, rec)
  end
  if COUNTER[rec.state] then count(COUNTER[rec.state], -1) end
end

local function enter(key, rec)
  if rec.state == 'r' then
    redis.call('ZADD', k_ready, rec.rank1, member(key, rec))
    readied = readied + 1
  elseif rec.state == '!' then
    redis.call('ZADD', k_buried, rec.rank1, member(key, rec))
  elseif rec.state == 't' and delivered then
    redis.call('ZADD', delivered, rec.rank1, key)
  elseif rec.state == 't' then
    redis.call('ZADD', k_taken, rec.owner, key)
  elseif rec.state == 'g' then
    hold(key, rec)
  end
  if COUNTER[rec.state] then count(COUNTER[rec.state], 1) end
end

local function set_timer(key, old, new)
  if new == old then return end
  if new then redis.call('ZADD', k_due, new, key) else take_out('ZREM', k_due, key) end
end

-- Tell what happened to a task; the place of that in the log.
local function note(events, key, rec)
  local last = #log
  log[last + 1], log[last + 2], log[last + 3] = events, id_of(key), encode(rec)
  return last / 3 + 1
end

-- penstock.store.redis.record knows the reason. With its first byte the data can never be taken for what was put.
local function unreadable(value)
  return {
    state = '!', created = now, rank1 = 0, rank2 = 0, pri = 0, attempts = 0, lease = 0,
    reason = 'its stored record could not be read', payload = '\255' .. value,
  }
end

bury_unreadable = function(key, value)
  local rec = unreadable(value)
  save(key, rec)
  if mark then mark('t' .. key) end
  enter(key, rec)
  count('bury', 1)
  note('bury', key, rec)
end

-- Carry out what lifecycle decided: `to` has the next state, its events and fields.
local function change(key, rec, to)
  if rec.group_no then to = gate(rec, to) end
  local before, timer = rec.state, rec.at
  leave(key, rec)
  rec.state, rec.at, rec.attempts, rec.reason = to.state, to.at, to.attempts, to.reason
  if to.state ~= '-' then rec.expires = to.expires end
  if to.state ~= 't' then rec.owner = nil end
  if moved then moved(key, rec, before) end
  set_timer(key, timer, rec.at)
  if rec.state == '-' then
    take_out('HDEL', k_tasks, key)
    fetched[key] = false
    removed = removed + 1
  else
    save(key, rec)
  end
  if mark and not (before == 't' and rec.state == 't') then mark('t' .. key) end -- a touch is the lease's business
  enter(key, rec)
  for event in string.gmatch(to.events, '%a+') do count(event, 1) end
  if left and rec.state == '-' then left(key, rec, to) end
  return note(to.events, key, rec)
end

-- Put what follows from the step, and write everything that was gathered.
local function close()
  if follow_up then follow_up() end
  if save_last then save_last() end
  if save_lanes then save_lanes() end
  finish()
end
