-- Puts.

-- part: add_entries
-- Create tasks from entries. The entries of a run have the same spec (see new_record); the rest of each entry is its tail:
-- the bytes of its texts, and its data. `last` is the last id given.
-- KEYS: tasks ready due members addresses
local last, newest = tonumber(meta[1]), string.find(ARGV[2], 'n', 1, true) ~= nil
local by_two = string.find(ARGV[2], '2', 1, true) ~= nil

-- Add runs, [[spec, number of entries], ...], whose tails follow a place; `logged`: also log the new tasks.
local function add_entries(runs, tails, place, logged)
  local tasks, ready, due, members, names, delayed, named = {}, {}, {}, {}, {}, 0, 0
  local stamp, from, name_of, spanned = key_of(now), place, nil, false
  if name_entries then name_of, spanned = name_entries(#tails - place, last) end
  local micro_queues_of = load_micro_queues and load_micro_queues(tails, place)
  for _, run in ipairs(runs) do
    local spec, rec, body, start = run[1], nil, nil, nil
    local flags, fixed = spec[1], not (spec[4] or spec[7])
    local in_queue, addressed = flags % 32 >= 16, flags % 64 >= 32
    local unnamed = name_of and not addressed
    local no, waits, score, due_at = spec[12], nil, nil, nil
    local member = no and key_of(no) .. 'm'

    local function pack_body()
      local more, numbers = pack_numbers(rec)
      body = string.char(flags + more + (unnamed and 32 or 0)) .. stamp .. numbers
    end

    for i = 1, run[2] do
      last, place = last + 1, place + 1
      local key, tail = key_of(last), tails[place]
      if i == 1 or not fixed then
        rec = new_record(spec, last)
        start = sortable(rec.rank1) .. (by_two and not fair and sortable(rec.rank2) or '')
        waits = rec.state == 'g' and key_of(no) .. 'u' .. sortable(rec.rank1) .. (by_two and sortable(rec.rank2) or '')
        score, due_at = word_of(rec.rank1), rec.at and word_of(rec.at)
        pack_body()
      end
      local state, address = rec.state, nil
      if micro_queues_of and state == 'r' then
        local turn
        state, turn = enter_micro_queue(micro_queues_of[place], rec, start, key, newest)
        if fair then
          rec.rank2 = turn
          pack_body()
        end
      end
      if unnamed then
        address = name_of(place - from, key)
        tail = with_length(in_order and short_name(address, now) or address) .. tail
      elseif addressed then
        named = named + 1
        address = entry_names and entry_names[named] or text_at(tail, in_queue and 2 + string.byte(tail) or 1)
      end
      local value, n = state .. body .. tail, #tasks
      tasks[n + 1], tasks[n + 2] = key, value
      if state == 'r' then
        readied = readied + 1
        if not in_order then
          n = #ready
          ready[n + 1], ready[n + 2] = score, by_two and sortable(rec.rank2) .. key or key
        end
      elseif state ~= 'q' then
        delayed = delayed + 1
      end
      if due_at then
        n = #due
        due[n + 1], due[n + 2] = due_at, key
      end
      if no then
        n = #members
        members[n + 1], members[n + 2] = '0', member .. key
        if waits then members[n + 3], members[n + 4] = '0', waits .. key end
      end
      if address and not spanned then
        n = #names
        names[n + 1], names[n + 2] = address, key
      end
      if mark_changed then mark_changed('t' .. key) end
      if logged then log_value('put', last, value) end
    end
  end
  call_with('HSET', k_tasks, tasks)
  call_with('ZADD', k_ready, ready)
  call_with('ZADD', k_due, due)
  if #members > 0 then call_with('ZADD', k_members, members) end
  if #names > 0 then call_with('HSET', k_addresses, names) end
  count('delayed', delayed)
end

save_last = function()
  if last > tonumber(meta[1]) then redis.call('HSET', k_meta, 'last', last) end
end

-- part: put_entries
-- ARGV: now, shape, limit, capacity or '', facts, runs: msgpack, tail, ...
-- Returns: now, first id, readied, for messages also the ms and seq before the first message id; or now, -1, total if the tube
--   is full; or now, -2, and the tasks that have the addresses of the entries, as with_groups returns them
local runs, first = cmsgpack.unpack(ARGV[6]), last + 1
if find_conflict and find_conflict(runs, ARGV, 6, {}) then return { now, -2, unpack({ with_groups(holders) }) } end
if ARGV[4] ~= '' and count_tasks() + #ARGV - 6 > tonumber(ARGV[4]) then
  redis.call('HSET', k_meta, 'full', '1')
  return { now, -1, count_tasks() }
end
if keep_relations then keep_relations(runs, ARGV[5]) end
if pass_all then pass_all(count_tasks()) end
add_entries(runs, ARGV, 6)
save_last()
if save_micro_queues then save_micro_queues() end
finish()
return { now, first, readied, unpack(given_mark or {}) }

-- script: put
-- Store tasks in order, all or none. Messages of a reliable tube get their ids here.
-- WITH: now tube encode new_record count_tasks unleased? decode? tasks? micro_queues? add_entries put_entries

-- script: put_related
-- As put, for tasks with addresses or reply tubes.
-- WITH: now tube encode decode tasks micro_queues? groups read_groups with_groups outcomes new_record unleased? add_entries
-- WITH: find_conflict count_tasks put_entries

-- part: find_conflict
local former = {} -- tasks that had the addresses of the entries
holders = {} -- tasks that have them now

-- Whether a task that is not in `leaving` has an address of the entries.
find_conflict = function(runs, tails, place, leaving)
  local names = {}
  entry_names = names -- which add_entries need not read again
  for _, run in ipairs(runs) do
    local flags = run[1][1]
    for i = place + 1, place + (flags % 64 >= 32 and run[2] or 0) do
      names[#names + 1] = text_at(tails[i], flags % 32 >= 16 and 2 + string.byte(tails[i]) or 1)
    end
    place = place + run[2]
  end
  for i, key in ipairs(read_many(k_addresses, names)) do
    local value = key and redis.call('HGET', k_tasks, key)
    local rec = value and decode(value) -- an unreadable task has lost its address
    if rec and rec.address == names[i] and not leaving[key] then
      holders[#holders + 1] = key
    elseif key then
      former[#former + 1] = key
    end
  end
  return #holders > 0
end

-- Supersede the outcomes of former tasks, and store in meta what the new tasks need.
keep_relations = function(runs, facts)
  supersede(former)
  if not meta[5] and not delivered then
    meta[5] = facts
    redis.call('HSET', k_meta, 'facts', facts)
  end
  for _, run in ipairs(runs) do
    if run[1][14] then redis.call('HSETNX', k_meta, 'posted', 0) end
  end
end

-- script: put_plain
-- Store one task that has nothing but data, ready at once, in a tube without micro-queues and capacity. Its record comes in
-- pieces: see new_pieces in penstock.store.redis.encoding.
-- KEYS: meta tasks ready due
-- ARGV: now, shape, limit, record up to created, ttl or '', record from expires to the data, first rank, second rank as
--   stored in the ready index or '', data
-- Returns: now, id
-- WITH: now
local meta = redis.call('HMGET', k_meta, 'last', 'take_waits')
if not meta[1] then return { -1 } end
local id, expires = meta[1] + 1, ''
local key = struct.pack('>I6', id)
if ARGV[5] ~= '' then
  expires = struct.pack('>I6', now + ARGV[5])
  redis.call('ZADD', k_due, now + ARGV[5], key)
end
redis.call('HSET', k_tasks, key, ARGV[4] .. struct.pack('>I6', now) .. expires .. ARGV[6] .. ARGV[9])
redis.call('ZADD', k_ready, ARGV[7], ARGV[8] .. key)
redis.call('HSET', k_meta, 'last', id)
if meta[2] then -- as in the part tube
  redis.call('HDEL', k_meta, 'take_waits')
  local prefix, no = string.match(k_meta, '^{(.*):(%d+)}:meta$')
  redis.call('PUBLISH', prefix .. ':tube_changed', no)
end
if mark_changed then mark_changed('t' .. key) end
return { now, id }
