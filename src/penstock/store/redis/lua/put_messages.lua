-- put_messages: store messages of a reliable tube in order, or none.
-- ARGV: as put
-- Answer: now, first id, the two numbers that the first message's id comes after; or now, -1, total without room.
-- KEYS: tasks ready
-- WITH: moment base record made room spec unleased
local first = head[1] + 1
local id, ms, seq = tonumber(head[1]), next_marks(wanted)
local tasks, ready, named = {}, {}, {}

local function flush()
  if #tasks == 0 then return end
  redis.call('HSET', k_tasks, unpack(tasks))
  redis.call('ZADD', k_ready, unpack(ready))
  redis.call('HSET', k_addresses, unpack(named))
  tasks, ready, named = {}, {}, {}
end

for _, run in ipairs(runs) do
  for _ = 1, run[2] do
    id = id + 1
    local key, rec, n = key_of(id), made(run[1], id), #tasks
    rec.address, rec.payload = shown_mark(ms, seq + id - first + 1), ARGV[5 + id - first + 1]
    if mark then mark('t' .. key) end
    tasks[n + 1], tasks[n + 2] = key, encode(rec)
    ready[n + 1], ready[n + 2] = rec.rank1, key
    named[n + 1], named[n + 2] = rec.address, key
    if n >= 2000 then flush() end -- Lua's stack holds some thousand arguments
  end
end
flush()
redis.call('HSET', k_meta, 'last', id)
readied = wanted
finish()
return { now, first, ms, seq }
