-- put: store tasks in order, or none.
-- ARGV: now, shape, limit, capacity or '', runs: msgpack [[spec, how many], …], payload, …
-- Answer: now, first id; or now, -1, total when there is no room.
-- KEYS: tasks ready due
-- WITH: moment base record made room spec
local id = tonumber(head[1])
local first, tasks, ready, due, delayed = id + 1, {}, {}, {}, 0
local second = string.find(ARGV[2], '2', 1, true) ~= nil

local function flush(command, key, items)
  if #items > 0 then redis.call(command, key, unpack(items)) end
  return {}
end

for _, run in ipairs(runs) do
  local spec = run[1]
  local varies = spec[3] or spec[6]
  local rec = made(spec, id + 1)
  local lead = encode(rec)
  for _ = 1, run[2] do
    id = id + 1
    local key = key_of(id)
    if varies then
      rec = made(spec, id)
      lead = encode(rec)
    end
    if mark then mark('t' .. key) end
    tasks[#tasks + 1] = key
    tasks[#tasks + 1] = lead .. ARGV[5 + id - first + 1]
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
    if #tasks > 2000 then -- Lua's stack holds some thousand arguments
      tasks = flush('HSET', k_tasks, tasks)
      ready = flush('ZADD', k_ready, ready)
      due = flush('ZADD', k_due, due)
    end
  end
end
flush('HSET', k_tasks, tasks)
flush('ZADD', k_ready, ready)
flush('ZADD', k_due, due)
redis.call('HSET', k_meta, 'last', id)
count('delayed', delayed)
readied = id - first + 1 - delayed
finish()
return { now, first }
