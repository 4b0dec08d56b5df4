-- part: micro_queues
-- Only for tubes with micro-queues: which ready tasks are heads, and whose turn it is, as decided by penstock.core.lane.
-- lanes: micro-queue -> taken, heads, waiting, turn. queue: a sorted set, all scores 0, of the heads (h) and waiting (w)
-- tasks by micro-queue and place, which is rank and key. idle: empty micro-queues of a fair tube whose turn still matters,
-- by turn. The name of a micro-queue follows its length everywhere, as in tasks.
-- In a fair tube the second rank of a head is the turn of its micro-queue.
-- What becomes ready waits at first. Before a script reads the ready index, and at its end, settle_lanes makes the first
-- (limit - taken) ready tasks of each micro-queue that it touched heads.
-- KEYS: lanes queue idle
fair, limit = string.find(ARGV[2], 'f', 1, true) ~= nil, tonumber(ARGV[3])
local lanes = {}

local function read_lane(stored)
  if not stored then return false end
  local lane = {}
  lane.taken, lane.heads, lane.waiting, lane.turn = struct.unpack('>I4I4I4I6', stored)
  return lane
end

-- The name of the micro-queue that begins at this place of a stored task or of a tail.
local function name_at(value, place) return string.sub(value, place, place + (string.byte(value, place) or 0)) end

-- The micro-queues of stored tasks, or of the tails behind a place, which are read at once.
load_lanes = function(values, tails_from)
  local names, asked, wanted = {}, {}, {}
  for i = (tails_from or 0) + 1, #values do
    local value, name = values[i], nil
    local flags = not tails_from and value and string.byte(value, 2)
    if tails_from then
      name = name_at(value, 1)
    elseif flags then
      name = band(flags, 16) ~= 0 and name_at(value, texts_place(flags)) or '\0'
    end
    names[i] = name
    if name and lanes[name] == nil and not asked[name] then
      asked[name], wanted[#wanted + 1] = true, name
    end
  end
  for i, stored in ipairs(read_many(k_lanes, wanted)) do lanes[wanted[i]] = read_lane(stored) end
  return names
end

-- The micro-queue of a name; with `new`, also one that is not stored.
local function lane_of(name, new)
  local lane = lanes[name]
  if lane == nil then lane = read_lane(redis.call('HGET', k_lanes, name)) end
  if not lane and new then lane = { taken = 0, heads = 0, waiting = 0, turn = 0 } end
  lanes[name] = lane
  return lane
end

local function empty(lane) return lane.taken == 0 and lane.heads == 0 and lane.waiting == 0 end

local function next_turn(lane) return math.max(now, lane.turn + 1) end

queue_place = function(key, rec)
  return sortable(rec.rank1) .. (second and not fair and sortable(rec.rank2) or '') .. key
end

-- Whether one place is before another. Strings cannot be compared: Lua does that by the server's locale.
local function before(place, other)
  for at = 1, #place - 6, 8 do
    local one, two = number_of(string.sub(place, at)), number_of(string.sub(other, at))
    if one ~= two then return one < two end
  end
  return id_of(place) < id_of(other)
end

-- A task changes its state; `old_place`: its place, if its ranks have changed.
update_lane = function(key, rec, before_state, old_place)
  local lead = with_length(rec.utube or '')
  local lane = lane_of(lead, rec.state == 'r')
  if not lane then return end
  local place = queue_place(key, rec)
  if fair then
    rec.rank2 = 0
    if rec.state == 'r' and empty(lane) then lane.turn = next_turn(lane) end
  end
  if before_state == 't' then
    lane.taken = lane.taken - 1
  elseif before_state == 'r' then
    lane.heads = lane.heads - 1
    remove_from('ZREM', k_queue, lead .. 'h' .. (old_place or place))
  elseif before_state == 'q' then
    lane.waiting = lane.waiting - 1
    remove_from('ZREM', k_queue, lead .. 'w' .. (old_place or place))
  end
  if rec.state == 'r' then
    rec.state, lane.waiting = 'q', lane.waiting + 1
    add_to('ZADD', k_queue, 0, lead .. 'w' .. place)
  elseif rec.state == 't' then
    lane.taken = lane.taken + 1
    if fair then lane.turn, lane.turned = next_turn(lane), true end
  end
  lane.touched = true
end

-- A new task enters its micro-queue: `r` if it is a head, for now, else `q`; and in a fair tube its second rank. `start`
-- is its place without its key; `last`: it comes after all others.
local entered = {} -- words to add to the queue

enter_lane = function(lead, rec, start, key, last)
  local lane, n = lanes[lead] or lane_of(lead, true), #entered
  if fair and empty(lane) then lane.turn = next_turn(lane) end
  if lane.waiting == 0 and lane.taken + lane.heads < limit then
    if lane.heads == 0 or lane.worst then lane.worst = math.max(lane.worst or rec.rank1, rec.rank1) end
    lane.heads = lane.heads + 1
    entered[n + 1], entered[n + 2] = 0, lead .. 'h' .. start .. key
    return 'r', lane.turn
  end
  lane.waiting = lane.waiting + 1
  entered[n + 1], entered[n + 2] = 0, lead .. 'w' .. start .. key
  -- Mostly it is behind the heads, and the worst of these was put by the same call.
  local behind = last or (lane.worst and (rec.rank1 > lane.worst or (rec.rank1 == lane.worst and #start == 8)))
  if not behind or lane.taken + lane.heads < limit then lane.touched = true end
  return 'q', 0
end

local function rank_of(place) return string.find(place, '\128\0\0\0\0\0\0\0', 1, true) == 1 and 0 or number_of(place) end

-- Write a ready task as a head (r) or as a waiting one (q), if its bytes are as they should be. Unless the tube is fair,
-- that changes its state alone.
local function restate(place, value, from, to, turn)
  local key, rank2, stored = key_in(place), nil, nil
  if not value or string.byte(value) ~= string.byte(from) then return false end
  if fair then
    local rec = decode(value)
    if not rec then return false end
    rec.state, rank2, rec.rank2 = to, rec.rank2, turn
    stored = encode(rec)
  else
    stored = to .. string.sub(value, 2)
  end
  fetched[key] = nil
  add_to('HSET', k_tasks, key, stored)
  if from == 'r' then
    remove_from('ZREM', k_ready, fair and sortable(rank2) .. key or string.sub(place, 9))
    readied = readied - 1
  end
  if to == 'r' then
    add_to('ZADD', k_ready, rank_of(place), fair and sortable(turn) .. key or string.sub(place, 9))
    readied = readied + 1
  end
  return true
end

local function demote(lane, lead, place)
  lane.heads = lane.heads - 1
  remove_from('ZREM', k_queue, lead .. 'h' .. place)
  if restate(place, redis.call('HGET', k_tasks, key_in(place)), 'r', 'q', 0) then -- else it is left to a repair
    lane.waiting = lane.waiting + 1
    add_to('ZADD', k_queue, 0, lead .. 'w' .. place)
  end
end

local function places_in(lead, letter, behind, most)
  local found = redis.call('ZRANGEBYLEX', k_queue, '[' .. lead .. letter, '(' .. lead .. behind, 'LIMIT', 0, most)
  for i, name in ipairs(found) do found[i] = string.sub(name, #lead + 2) end
  return found
end

-- Demote heads that are too many or overtaken. Adds the places that become heads to `chosen`.
local function choose_heads(lead, lane, chosen)
  local slots = math.max(0, limit - lane.taken)
  local waiting = lane.waiting > 0 and slots > 0 and places_in(lead, 'w', 'x', slots) or {}
  local heads = {}
  if lane.heads > 0 and (#waiting > 0 or lane.turned or lane.heads > slots) then heads = places_in(lead, 'h', 'i', lane.heads) end
  local free = slots - lane.heads
  for _ = free, -1 do demote(lane, lead, table.remove(heads)) end
  free = math.max(0, free)
  for _, place in ipairs(waiting) do
    if free > 0 then
      free = free - 1
    elseif #heads > 0 and before(place, heads[#heads]) then
      demote(lane, lead, table.remove(heads))
    else
      break
    end
    chosen[#chosen + 1] = { lane, lead, place }
  end
  if lane.turned then -- after a hand-out, a fair micro-queue moves behind the others with its remaining heads
    for _, place in ipairs(heads) do restate(place, redis.call('HGET', k_tasks, key_in(place)), 'r', 'r', lane.turn) end
  end
  lane.touched, lane.turned, lane.worst = false, false, nil
end

settle_lanes = function()
  flush_gathered()
  call_with('ZADD', k_queue, entered)
  entered = {}
  repeat
    local chosen, keys, stale = {}, {}, false
    gather()
    for name, lane in pairs(lanes) do
      if lane and lane.touched then choose_heads(name, lane, chosen) end
    end
    for i, one in ipairs(chosen) do keys[i] = key_in(one[3]) end
    for i, value in ipairs(read_many(k_tasks, keys)) do
      local lane, lead, place = unpack(chosen[i])
      remove_from('ZREM', k_queue, lead .. 'w' .. place)
      if restate(place, value, 'q', 'r', lane.turn) then
        lane.waiting, lane.heads = lane.waiting - 1, lane.heads + 1
        add_to('ZADD', k_queue, 0, lead .. 'h' .. place)
      else -- left to a repair, but it must not hold up those behind it
        readable(key_in(place), value)
        lane.touched, stale = true, true
      end
    end
    flush_gathered()
  until not stale
end

-- A head is handed out, or a taken task acked: what update_lane does, from its stored bytes. Not for fair tubes. `name`: of
-- the task in the ready index.
take_head = function(lead, name, value)
  local flags, rank1 = string.byte(value, 2), 0
  local lane = lane_of(lead, true)
  if band(flags, 8) ~= 0 then rank1 = struct.unpack('>d', value, texts_place(flags) - 20) end
  lane.heads, lane.taken = lane.heads - 1, lane.taken + 1
  remove_from('ZREM', k_queue, lead .. 'h' .. sortable(rank1) .. name)
end

ack_taken = function(lead)
  local lane = lane_of(lead)
  if lane then lane.taken, lane.touched = lane.taken - 1, true end
end

save_lanes = function()
  settle_lanes()
  local words, gone = {}, {}
  for name, lane in pairs(lanes) do
    if lane and empty(lane) and (not fair or lane.turn < now) then
      gone[#gone + 1] = name
    elseif lane then
      words[#words + 1] = name
      words[#words + 1] = struct.pack('>I4I4I4I6', lane.taken, lane.heads, lane.waiting, lane.turn)
      if fair and empty(lane) then redis.call('ZADD', k_idle, lane.turn, name) end
    end
  end
  call_with('HSET', k_lanes, words)
  call_with('HDEL', k_lanes, gone)
  if fair then call_with('ZREM', k_idle, gone) end
end

forget_idle = function()
  if not fair then return end
  for _, name in ipairs(redis.call('ZRANGEBYSCORE', k_idle, '-inf', '(' .. string.format('%.0f', now), 'LIMIT', 0, 100)) do
    lane_of(name) -- save_lanes deletes it, unless it is in use again
    redis.call('ZREM', k_idle, name)
  end
end
