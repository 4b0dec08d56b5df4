-- part: micro_queues
-- Only for tubes with micro-queues: which ready tasks are heads, and whose turn it is, as decided by penstock.core.lane.
-- lanes: micro-queue -> taken, heads, waiting, turn. queue: a sorted set, all scores 0, of the heads (h) and waiting (w)
-- tasks by micro-queue and rank. idle: empty micro-queues of a fair tube whose turn still matters, by turn.
-- In a fair tube the second rank of a head is the turn of its micro-queue.
-- KEYS: lanes queue idle
fair, limit = string.find(ARGV[2], 'f', 1, true) ~= nil, tonumber(ARGV[3])
local lanes = {}

local function lane_of(utube)
  local lane = lanes[utube]
  if lane == nil then
    local stored = redis.call('HGET', k_lanes, utube)
    lane = false
    if stored then
      lane = {}
      lane.taken, lane.heads, lane.waiting, lane.turn = struct.unpack('>I4I4I4I6', stored)
    end
    lanes[utube] = lane
  end
  return lane
end

local function empty(lane) return lane.taken == 0 and lane.heads == 0 and lane.waiting == 0 end

local function next_turn(lane) return math.max(now, lane.turn + 1) end

local function lead(utube) return string.char(#utube) .. utube end

queue_member = function(key, rec, letter)
  local place = sortable(rec.rank1)
  if second and not fair then place = place .. sortable(rec.rank2) end
  return lead(rec.utube or '') .. letter .. place .. key
end

local function before(key, rec, other_key, other)
  if rec.rank1 ~= other.rank1 then return rec.rank1 < other.rank1 end
  if not fair and rec.rank2 ~= other.rank2 then return rec.rank2 < other.rank2 end
  return id_of(key) < id_of(other_key)
end

-- The first task of a range of the queue; entries of tasks that cannot be read are removed.
local function first_of(command, from, to)
  while true do
    local found = redis.call(command, k_queue, from, to, 'LIMIT', 0, 1)[1]
    local key = found and key_in(found)
    if not key or fetch(key) then return key end
    redis.call('ZREM', k_queue, found)
  end
end

-- Write what was gathered before an index is read or a task is changed a second time.
local function write_additions()
  if additions then
    local gathered = removals and {}
    flush_gathered()
    removals, additions = gathered, {}
  end
end

local function first_waiting(utube)
  return first_of('ZRANGEBYLEX', '[' .. lead(utube) .. 'w', '(' .. lead(utube) .. 'x')
end

-- A micro-queue with a single head remembers it: `head`.
local function worst_head(lane, utube)
  if limit > 1 then write_additions() end
  local head = lane.head or first_of('ZREVRANGEBYLEX', '(' .. lead(utube) .. 'i', '[' .. lead(utube) .. 'h')
  if limit == 1 then lane.head = head end
  return head
end

local function make_head(lane, key, rec)
  lane.heads = lane.heads + 1
  if limit == 1 then lane.head = key end
  add_to('ZADD', k_queue, 0, queue_member(key, rec, 'h'))
  rec.state = 'r'
  if fair then rec.rank2 = lane.turn end
end

local function make_waiting(lane, key, rec)
  lane.waiting = lane.waiting + 1
  add_to('ZADD', k_queue, 0, queue_member(key, rec, 'w'))
  rec.state = 'q'
  if fair then rec.rank2 = 0 end
end

local function promote(lane, key)
  local rec = fetch(key)
  write(additions and removals, 'ZREM', k_queue, queue_member(key, rec, 'w'))
  lane.waiting = lane.waiting - 1
  make_head(lane, key, rec)
  save(key, rec)
  enter(key, rec)
end

local function demote(lane, key)
  local rec = fetch(key)
  write_additions()
  redis.call('ZREM', k_queue, queue_member(key, rec, 'h'))
  leave(key, rec)
  lane.heads, lane.head = lane.heads - 1, nil
  make_waiting(lane, key, rec)
  save(key, rec)
  readied = readied - 1
end

local function free_slots(lane) return limit - lane.taken - lane.heads end

-- Make the first waiting task a head; false if there is none. Unless the tube is fair, that changes the state alone, so the
-- record is not decoded: its rank is in its member of the queue.
local function promote_first(lane, utube)
  local lead = lead(utube)
  local found = redis.call('ZRANGEBYLEX', k_queue, '[' .. lead .. 'w', '(' .. lead .. 'x', 'LIMIT', 0, 1)[1]
  local key = found and key_in(found)
  local value = key and not fair and fetched[key] == nil and redis.call('HGET', k_tasks, key)
  if not value or string.byte(value) ~= 113 then -- q
    key = first_waiting(utube)
    if key then promote(lane, key) end
    return key ~= nil
  end
  local rest = string.sub(found, #lead + 2)
  lane.waiting, lane.heads, lane.head = lane.waiting - 1, lane.heads + 1, limit == 1 and key or nil
  write(additions and removals, 'ZREM', k_queue, found)
  add_to('ZADD', k_queue, 0, lead .. 'h' .. rest)
  add_to('HSET', k_tasks, key, 'r' .. string.sub(value, 2))
  add_to('ZADD', k_ready, number_of(rest), string.sub(rest, 9))
  readied = readied + 1
  return true
end

local function fill(lane, utube)
  while lane.waiting > 0 and free_slots(lane) > 0 do
    if limit > 1 then write_additions() end
    if not promote_first(lane, utube) then break end
  end
end

-- `newest`: the task comes last in its micro-queue, so it overtakes nothing.
local function add_ready(lane, key, rec, was_empty, newest)
  if fair and was_empty then lane.turn = next_turn(lane) end
  local utube = rec.utube or ''
  if lane.waiting > 0 and free_slots(lane) > 0 then write_additions() end
  if free_slots(lane) > 0 then
    local first = lane.waiting > 0 and first_waiting(utube)
    if not first or before(key, rec, first, fetch(first)) then return make_head(lane, key, rec) end
    promote(lane, first)
    return make_waiting(lane, key, rec)
  end
  local worst = not newest and lane.heads > 0 and worst_head(lane, utube)
  if not worst or not before(key, rec, worst, fetch(worst)) then return make_waiting(lane, key, rec) end
  demote(lane, worst)
  make_head(lane, key, rec)
end

-- After a hand-out, a fair micro-queue moves behind the others with its remaining heads.
local function pass_turn(lane, utube)
  if not fair then return end
  lane.turn = next_turn(lane)
  local low, high = '[' .. lead(utube) .. 'h', '(' .. lead(utube) .. 'i'
  for _, found in ipairs(redis.call('ZRANGEBYLEX', k_queue, low, high)) do
    local key = key_in(found)
    local rec = fetch(key)
    if rec then
      redis.call('ZREM', k_ready, member(key, rec))
      rec.rank2 = lane.turn
      save(key, rec)
      redis.call('ZADD', k_ready, rec.rank1, member(key, rec))
    end
  end
end

-- `old_member`: the task's former member of the queue, if its ranks have changed.
local function leave_state(lane, key, rec, before_state, old_member)
  if before_state == 't' then
    lane.taken = lane.taken - 1
  elseif before_state == 'r' then
    lane.heads, lane.head = lane.heads - 1, nil
    redis.call('ZREM', k_queue, old_member or queue_member(key, rec, 'h'))
  elseif before_state == 'q' then
    lane.waiting = lane.waiting - 1
    redis.call('ZREM', k_queue, old_member or queue_member(key, rec, 'w'))
  end
end

-- A task changes its state: update its micro-queue's numbers, decide between r and q, promote and demote others.
update_lane = function(key, rec, before_state, newest, old_member)
  if fair then rec.rank2 = 0 end
  local utube = rec.utube or ''
  local lane = lane_of(utube)
  if not lane then
    if rec.state ~= 'r' then return end
    lane = { taken = 0, heads = 0, waiting = 0, turn = 0 }
    lanes[utube] = lane
  end
  local was_empty = empty(lane)
  leave_state(lane, key, rec, before_state, old_member)
  if rec.state == 'r' then
    add_ready(lane, key, rec, was_empty, newest)
  elseif rec.state == 't' then
    lane.taken = lane.taken + 1
    if before_state == 'r' then pass_turn(lane, utube) end
  else
    fill(lane, utube)
  end
end

-- What update_lane does for a task that is handed out or acked, from its stored bytes. Not for fair tubes.
local function lead_in(value, flags)
  local at = layout_of(flags).texts
  return band(flags, 1024) ~= 0 and string.sub(value, at, at + string.byte(value, at)) or '\0'
end

-- `name`: the task's member of the ready index.
take_head = function(name, value)
  local high, low = string.byte(value, 2, 3)
  local flags, rank1 = high * 256 + low, 0
  if band(flags, 1) ~= 0 then
    rank1 = struct.unpack('>d', value, layout_of(flags)[1])
  elseif band(flags, 8192) ~= 0 then
    rank1 = struct.unpack('>I4', value, layout_of(flags)[4])
  end
  local utube = lead_in(value, flags)
  local lane = lane_of(string.sub(utube, 2))
  if lane then
    lane.heads, lane.taken, lane.head = lane.heads - 1, lane.taken + 1, nil
  end
  removals = removals or {}
  remove_from('ZREM', k_queue, utube .. 'h' .. sortable(rank1) .. name)
end

ack_taken = function(value, flags)
  local utube = string.sub(lead_in(value, flags), 2)
  local lane = lane_of(utube)
  if lane then
    lane.taken = lane.taken - 1
    fill(lane, utube)
  end
end

save_lanes = function()
  local words = {}
  for utube, lane in pairs(lanes) do
    if lane and empty(lane) and (not fair or lane.turn < now) then
      redis.call('HDEL', k_lanes, utube)
      if fair then redis.call('ZREM', k_idle, utube) end
    elseif lane then
      words[#words + 1] = utube
      words[#words + 1] = struct.pack('>I4I4I4I6', lane.taken, lane.heads, lane.waiting, lane.turn)
      if fair and empty(lane) then redis.call('ZADD', k_idle, lane.turn, utube) end
    end
  end
  call_with('HSET', k_lanes, words)
end

forget_idle = function()
  if not fair then return end
  for _, utube in ipairs(redis.call('ZRANGEBYSCORE', k_idle, '-inf', '(' .. string.format('%.0f', now), 'LIMIT', 0, 100)) do
    lane_of(utube) -- save_lanes deletes it, unless it is in use again
    redis.call('ZREM', k_idle, utube)
  end
end
