-- mend: set the indexes right for some tasks and index entries; the record is believed.
-- ARGV: now, shape, limit, then pairs: `tasks` and a task's key, or an index and a name in it
-- Answer: now
-- WITH: moment base record decode step lanes?
-- FLAGS: allow-oom
local INDEXES = { ready = k_ready, buried = k_buried, taken = k_taken, due = k_due }
if spot_of then INDEXES.queue = k_queue end

-- Where a task must stand: index, score, name, …
local function places(key, rec)
  local found = {}
  local function add(index, score, name) found[index] = { score, name } end
  if rec.state == 'r' then add('ready', rec.rank1, member(key, rec)) end
  if rec.state == '!' then add('buried', rec.rank1, member(key, rec)) end
  if rec.state == 't' then add('taken', rec.owner or 0, key) end
  if rec.at then add('due', rec.at, key) end
  if spot_of and (rec.state == 'r' or rec.state == 'q') then
    add('queue', 0, spot_of(key, rec, rec.state == 'r' and 'h' or 'w'))
  end
  return found
end

for i = 4, #ARGV, 2 do
  local index, name = ARGV[i], ARGV[i + 1]
  local key = key_in(name)
  local rec = fetch(key)
  local wanted = rec and places(key, rec) or {}
  if index == 'tasks' then
    for other, place in pairs(wanted) do redis.call('ZADD', INDEXES[other], place[1], place[2]) end
  elseif not wanted[index] or wanted[index][2] ~= name then
    redis.call('ZREM', INDEXES[index], name)
  end
end
return { now }
