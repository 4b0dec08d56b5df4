-- part: micro_queues
-- Only for tubes with micro-queues: which ready tasks are heads, and whose turn it is, as penstock.core.micro_queue defines.
-- micro_queues: micro-queue -> taken, heads, waiting, turn. queue: a sorted set, all scores 0, of all ready tasks by
-- micro-queue and place, which is rank and key; so the heads of a micro-queue are the first of its tasks. idle: empty
-- micro-queues of a fair tube whose turn still matters, by turn. The name of a micro-queue is always preceded by its length,
-- as in tasks.
-- In a fair tube the second rank of a head is the turn of its micro-queue.
-- A task that becomes ready is stored as waiting. Before a script reads the ready index, and at its end, settle_micro_queues
-- makes the first (limit - taken) ready tasks of each micro-queue that the script touched its heads.
-- KEYS: micro_queues queue idle
fair, limit = string.find(ARGV[2], 'f', 1, true) ~= nil, tonumber(ARGV[3])
local micro_queues = {}

-- `added`: how many tasks became ready in this step.
local function new_micro_queue(taken, heads, waiting, turn)
  return { taken = taken, heads = heads, waiting = waiting, turn = turn, added = 0, touched = false }
end

local function read_micro_queue(stored) return stored and new_micro_queue(struct.unpack('>I4I4I4I6', stored)) end

-- The name of the micro-queue, with its length, at this position of a stored task or of a tail.
local function name_at(value, place) return string.sub(value, place, place + (string.byte(value, place) or 0)) end

-- The names of the micro-queues of stored tasks, or of the tails after a place; reads all of these micro-queues at once.
load_micro_queues = function(values, tails_from)
  local names, wanted = {}, {}
  for i = (tails_from or 0) + 1, #values do
    local value, name = values[i], nil
    local flags = not tails_from and value and string.byte(value, 2)
    if tails_from then
      name = name_at(value, 1)
    elseif flags then
      name = flags % 32 >= 16 and name_at(value, texts_place(flags)) or '\0'
    end
    names[i] = name
    if name and micro_queues[name] == nil then
      micro_queues[name], wanted[#wanted + 1] = false, name
    end
  end
  for i, stored in ipairs(read_many(k_micro_queues, wanted)) do micro_queues[wanted[i]] = read_micro_queue(stored) end
  return names
end

-- The micro-queue of a name; with `new`, an empty one if none is stored.
local function micro_queue_of(name, new)
  local micro_queue = micro_queues[name]
  if micro_queue == nil then micro_queue = read_micro_queue(redis.call('HGET', k_micro_queues, name)) end
  if not micro_queue and new then micro_queue = new_micro_queue(0, 0, 0, 0) end
  micro_queues[name] = micro_queue
  return micro_queue
end

local function empty(micro_queue) return micro_queue.taken == 0 and micro_queue.heads == 0 and micro_queue.waiting == 0 end

local function next_turn(micro_queue) return math.max(now, micro_queue.turn + 1) end

queue_place = function(key, rec)
  return sortable(rec.rank1) .. (second and not fair and sortable(rec.rank2) or '') .. key
end

-- Update the micro-queue of a task that changes its state; `old_place`: its former place, if its ranks have changed.
update_micro_queue = function(key, rec, before_state, old_place)
  local lead = with_length(rec.utube or '')
  local micro_queue = micro_queue_of(lead, rec.state == 'r' or rec.state == 't')
  if not micro_queue then return end
  local place = queue_place(key, rec)
  if fair then
    rec.rank2 = 0
    if rec.state == 'r' and empty(micro_queue) then micro_queue.turn = next_turn(micro_queue) end
  end
  if before_state == 't' then
    micro_queue.taken = micro_queue.taken - 1
  elseif before_state == 'r' or before_state == 'q' then
    local counter = before_state == 'r' and 'heads' or 'waiting'
    micro_queue[counter] = micro_queue[counter] - 1
    remove_from('ZREM', k_queue, lead .. (old_place or place))
  end
  if rec.state == 'r' then
    rec.state, micro_queue.waiting, micro_queue.added = 'q', micro_queue.waiting + 1, micro_queue.added + 1
    add_to('ZADD', k_queue, '0', lead .. place)
  elseif rec.state == 't' then
    micro_queue.taken = micro_queue.taken + 1
    if fair then micro_queue.turn, micro_queue.turned = next_turn(micro_queue), true end
  end
  micro_queue.touched = true
end

-- Add a new task to its micro-queue. Returns `r` if it is a head, for now, else `q`; and in a fair tube its second rank.
-- `start` is its place without its key; `last`: it comes after all others.
local entered = {} -- arguments of ZADD for the queue

enter_micro_queue = function(lead, rec, start, key, last)
  local micro_queue, n = micro_queues[lead] or micro_queue_of(lead, true), #entered
  if fair and empty(micro_queue) then micro_queue.turn = next_turn(micro_queue) end
  entered[n + 1], entered[n + 2] = '0', lead .. start .. key
  micro_queue.added = micro_queue.added + 1
  if micro_queue.waiting == 0 and micro_queue.taken + micro_queue.heads < limit then
    if micro_queue.heads == 0 or micro_queue.worst then micro_queue.worst = math.max(micro_queue.worst or rec.rank1, rec.rank1) end
    micro_queue.heads = micro_queue.heads + 1
    return 'r', micro_queue.turn
  end
  micro_queue.waiting = micro_queue.waiting + 1
  -- Usually the task is behind the heads, the last of which was put by the same call.
  local behind = last or (micro_queue.worst and (rec.rank1 > micro_queue.worst or (rec.rank1 == micro_queue.worst and #start == 8)))
  if not behind or micro_queue.taken + micro_queue.heads < limit then micro_queue.touched = true end
  return 'q', 0
end

-- The first rank of a stored task.
local function rank_in(value)
  local flags = string.byte(value, 2)
  return band(flags, 8) ~= 0 and struct.unpack('>d', value, texts_place(flags) - 20) or 0
end

-- Write a ready task as a head (r) or as a waiting one (q), if its bytes are as expected. Unless the tube is fair, this
-- changes only its state.
local function restate(place, value, from, to, turn)
  local key, rank2, stored = key_in(place), nil, nil
  local state, flags = string.byte(value or '', 1, 2)
  if state ~= string.byte(from) or #value < texts_place(flags or 0) - 1 then return false end
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
    local rank = rank_in(value)
    add_to('ZADD', k_ready, rank == 0 and '0' or rank, fair and sortable(turn) .. key or string.sub(place, 9))
    readied = readied + 1
  end
  return true
end

-- Some places in a micro-queue, in order, after the first ones.
local function places_in(lead, skip, most)
  if most <= 0 then return {} end
  local from, to = skip == 0 and '0' or skip, most == 1 and '1' or most -- text is faster, see word_of
  local found = redis.call('ZRANGEBYLEX', k_queue, '[' .. lead, '(' .. lead .. '\255\255', 'LIMIT', from, to)
  for i, name in ipairs(found) do found[i] = string.sub(name, #lead + 1) end
  return found
end

-- Add the ready tasks of a micro-queue that may change to `found`: in order, those that must be heads, then former heads.
-- Heads stay heads unless this step added tasks, which may have overtaken them. After a hand-out, a fair micro-queue moves
-- behind the others, with its remaining heads.
local function find_ready(lead, micro_queue, found)
  local slots, heads = math.max(0, limit - micro_queue.taken), micro_queue.heads
  if micro_queue.waiting == 0 and heads <= slots and not micro_queue.turned then return end
  local known = (micro_queue.added > 0 or micro_queue.turned) and 0 or math.min(heads, slots)
  local overtaken = (micro_queue.added > 0 or heads > slots) and heads + micro_queue.added or 0
  for i, place in ipairs(places_in(lead, known, slots - known + overtaken)) do
    local n = #found.keys + 1
    found.keys[n], found.places[n], found.leads[n], found.first[n] = key_in(place), place, lead, known + i <= slots
  end
end

settle_micro_queues = function()
  flush()
  call_with('ZADD', k_queue, entered)
  entered = {}
  repeat
    local found, touched, stale = { keys = {}, places = {}, leads = {}, first = {} }, {}, {}
    for lead, micro_queue in pairs(micro_queues) do
      if micro_queue and micro_queue.touched then
        touched[lead] = micro_queue
        find_ready(lead, micro_queue, found)
      end
    end
    for i, value in ipairs(read_many(k_tasks, found.keys)) do
      local lead, place = found.leads[i], found.places[i]
      local micro_queue, is_head = micro_queues[lead], string.byte(value or '') == 114 -- r
      if is_head and found.first[i] then
        if micro_queue.turned then restate(place, value, 'r', 'r', micro_queue.turn) end
      elseif is_head then
        if restate(place, value, 'r', 'q', 0) then
          micro_queue.heads, micro_queue.waiting = micro_queue.heads - 1, micro_queue.waiting + 1
        end
      elseif found.first[i] then
        if restate(place, value, 'q', 'r', micro_queue.turn) then
          micro_queue.waiting, micro_queue.heads = micro_queue.waiting - 1, micro_queue.heads + 1
        else -- a repair corrects it, but it must not block the tasks behind it
          remove_from('ZREM', k_queue, lead .. place)
          readable(key_in(place), value)
          stale[lead] = true
        end
      end
    end
    for lead, micro_queue in pairs(touched) do
      if not stale[lead] then
        micro_queue.touched, micro_queue.turned, micro_queue.worst, micro_queue.added = false, false, nil, 0
      end
    end
    flush()
  until not next(stale)
end

-- Hand out a head, or (ack_taken) ack a taken task: as update_micro_queue, but from stored bytes. `name`: the member of the
-- task in the ready index.
take_head = function(lead, name, value)
  local micro_queue = micro_queue_of(lead, true)
  micro_queue.heads, micro_queue.taken = micro_queue.heads - 1, micro_queue.taken + 1
  if fair then micro_queue.turn, micro_queue.turned, micro_queue.touched = next_turn(micro_queue), true, true end
  remove_from('ZREM', k_queue, lead .. sortable(rank_in(value)) .. (fair and key_in(name) or name))
end

ack_taken = function(lead)
  local micro_queue = micro_queue_of(lead)
  if micro_queue then micro_queue.taken, micro_queue.touched = micro_queue.taken - 1, true end
end

save_micro_queues = function()
  settle_micro_queues()
  local words, gone = {}, {}
  for name, micro_queue in pairs(micro_queues) do
    if micro_queue and empty(micro_queue) and (not fair or micro_queue.turn < now) then
      gone[#gone + 1] = name
    elseif micro_queue then
      words[#words + 1] = name
      words[#words + 1] = struct.pack('>I4I4I4I6', micro_queue.taken, micro_queue.heads, micro_queue.waiting, micro_queue.turn)
      if fair and empty(micro_queue) then redis.call('ZADD', k_idle, micro_queue.turn, name) end
    end
  end
  call_with('HSET', k_micro_queues, words)
  call_with('HDEL', k_micro_queues, gone)
  if fair then call_with('ZREM', k_idle, gone) end
end

forget_idle = function()
  if not fair then return end
  for _, name in ipairs(redis.call('ZRANGEBYSCORE', k_idle, '-inf', '(' .. string.format('%.0f', now), 'LIMIT', 0, 100)) do
    micro_queue_of(name) -- save_micro_queues deletes it, unless it is in use again
    redis.call('ZREM', k_idle, name)
  end
end
