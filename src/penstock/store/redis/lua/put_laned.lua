-- put, for micro-queue tubes: store tasks in order, or none.
-- ARGV: as put
-- Answer: now, first id, the tasks' states as one string, and their second ranks; or now, -1, total without room.
-- WITH: moment base record spec decode step lanes
local id = tonumber(head[1])
local first, recs = id + 1, {}
local newest = string.find(ARGV[2], 'n', 1, true) ~= nil
for _, run in ipairs(runs) do
  for _ = 1, run[2] do
    id = id + 1
    local key, rec = key_of(id), made(run[1], id)
    rec.payload = ARGV[5 + id - first + 1]
    fetched[key], recs[#recs + 1] = rec, rec
    if rec.state == 'r' then moved(key, rec, nil, newest) end
    save(key, rec)
    set_timer(key, nil, rec.at)
    enter(key, rec)
  end
end
redis.call('HSET', k_meta, 'last', id)
save_lanes()
finish()
local states, ranks = {}, {}
for i, rec in ipairs(recs) do
  states[i], ranks[i] = rec.state, string.format('%.17g', rec.rank2)
end
return { now, first, table.concat(states), ranks }
