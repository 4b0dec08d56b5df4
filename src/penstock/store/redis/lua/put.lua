-- Puts of tasks without addresses, reply tubes and groups.

-- part: put_entries
-- Reads the entries of a put and refuses those that find no room.
local runs, wanted = cmsgpack.unpack(ARGV[5]), #ARGV - 5

if ARGV[4] ~= '' then
  local there = count_tasks()
  if there + wanted > tonumber(ARGV[4]) then
    redis.call('HSET', k_meta, 'full', '1')
    return { now, -1, there }
  end
end

-- script: put_plain
-- Store one task that has nothing but data, ready at once, in a tube without micro-queues and capacity. Its record comes in
-- pieces: see new_pieces in penstock.store.redis.encoding.
-- KEYS: meta tasks ready due
-- ARGV: now, record up to created, from there to expires, ttl or '', record up to the data, first rank, second rank as
--   stored in the ready index or '', data
-- Returns: now, id
-- WITH: now
local meta = redis.call('HMGET', k_meta, 'last', 'take_waits')
if not meta[1] then return { -1 } end
local id, expires = meta[1] + 1, ''
local key = struct.pack('>I6', id)
if ARGV[4] ~= '' then
  expires = struct.pack('>I6', now + ARGV[4])
  redis.call('ZADD', k_due, now + ARGV[4], key)
end
redis.call('HSET', k_tasks, key, ARGV[2] .. struct.pack('>I6', now) .. ARGV[3] .. expires .. ARGV[5] .. ARGV[8])
redis.call('ZADD', k_ready, ARGV[6], ARGV[7] .. key)
redis.call('HSET', k_meta, 'last', id)
if meta[2] then -- as in the part tube
  redis.call('HDEL', k_meta, 'take_waits')
  local prefix, no = string.match(k_meta, '^{(.*):(%d+)}:meta$')
  redis.call('PUBLISH', prefix .. ':tube_changed', no)
end
return { now, id }

-- script: put
-- Store tasks in order, all or none. Messages of a reliable tube get their ids here.
-- KEYS: tasks ready due
-- ARGV: now, shape, limit, capacity or '', runs: msgpack [[spec, how many, their micro-queues or nil], ...], payload, ...
-- Returns: now, first id, of messages also ms and seq that the first one's id follows; or now, -1, total if there is no room
-- WITH: now tube encode new_record count_tasks put_entries unleased?
local id, ms, seq = tonumber(meta[1]), nil, nil
if message_names then ms, seq = next_message_ids(wanted) end
local first, tasks, ready, due, names, delayed = id + 1, {}, {}, {}, {}, 0
local second = string.find(ARGV[2], '2', 1, true) ~= nil

for _, run in ipairs(runs) do
  local spec = run[1]
  local varies = spec[3] or spec[6] or message_names
  local rec = new_record(spec, id + 1)
  local lead = encode(rec)
  for _ = 1, run[2] do
    id = id + 1
    local key, place = key_of(id), id - first + 1
    if varies then
      rec = new_record(spec, id)
      rec.address = message_names and message_id(ms, seq + place)
      lead = encode(rec)
    end
    if mark_changed then mark_changed('t' .. key) end
    tasks[2 * place - 1], tasks[2 * place] = key, lead .. ARGV[5 + place]
    if message_names then names[2 * place - 1], names[2 * place] = rec.address, key end
    if rec.state == 'r' then
      ready[#ready + 1] = rec.rank1
      ready[#ready + 1] = second and sortable(rec.rank2) .. key or key
    else
      delayed = delayed + 1
    end
    if rec.at then
      due[#due + 1] = rec.at
      due[#due + 1] = key
    end
  end
end
call_with('HSET', k_tasks, tasks)
call_with('ZADD', k_ready, ready)
call_with('ZADD', k_due, due)
if message_names then call_with('HSET', message_names, names) end
redis.call('HSET', k_meta, 'last', id)
count('delayed', delayed)
readied = wanted - delayed
finish()
return { now, first, ms, seq }

-- script: put_micro_queues
-- Store tasks of a tube with micro-queues in order, all or none.
-- ARGV: as put
-- Returns: now, first id, the tasks' states as one string, in a fair tube {second rank, ...}; or now, -1, total if there is
--   no room
-- WITH: now tube encode layout new_record count_tasks put_entries decode tasks micro_queues add_task
local first, recs = last + 1, {}
additions = {} -- written by few commands
for _, run in ipairs(runs) do
  for i = 1, run[2] do
    last = last + 1
    local rec = new_record(run[1], last)
    rec.utube, rec.payload = run[3][i], ARGV[5 + last - first + 1]
    recs[#recs + 1] = rec
    add(rec)
  end
end
flush_gathered()
commit()
local states, ranks = {}, {}
for i, rec in ipairs(recs) do
  states[i], ranks[i] = rec.state, fair and string.format('%.17g', rec.rank2) or nil
end
return { now, first, table.concat(states), ranks }
