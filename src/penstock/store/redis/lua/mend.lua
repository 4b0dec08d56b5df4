-- mend: set the indexes right for some tasks and index entries; the record is believed.
-- ARGV: now, shape, limit, then pairs: `tasks` and a task's key, or an index and a name in it
-- Answer: now
-- KEYS: delivered
-- WITH: moment base record decode step lanes? lifecycle links unleased?
-- FLAGS: allow-oom
local INDEXES = {
  ready = k_ready, buried = k_buried, taken = k_taken, delivered = k_delivered, due = k_due, members = k_members,
}
if spot_of then INDEXES.queue = k_queue end

-- Where a task must stand: index -> name -> score.
local function places(key, rec)
  local found = { ready = {}, buried = {}, taken = {}, delivered = {}, due = {}, members = {}, queue = {} }
  if rec.state == 'r' then found.ready[member(key, rec)] = rec.rank1 end
  if rec.state == '!' then found.buried[member(key, rec)] = rec.rank1 end
  if rec.state == 't' and delivered then found.delivered[key] = rec.rank1 end
  if rec.state == 't' and not delivered then found.taken[key] = rec.owner or 0 end
  if rec.at then found.due[key] = rec.at end
  if rec.group_no then found.members[key_of(rec.group_no) .. 'm' .. key] = 0 end
  if rec.state == 'g' then found.members[waiting(key, rec)] = 0 end
  if spot_of and (rec.state == 'r' or rec.state == 'q') then
    found.queue[spot_of(key, rec, rec.state == 'r' and 'h' or 'w')] = 0
  end
  return found
end

for i = 4, #ARGV, 2 do
  local index, name = ARGV[i], ARGV[i + 1]
  local key = key_in(name)
  local rec = fetch(key)
  local wanted = rec and places(key, rec) or {}
  if index == 'tasks' then
    for other, names in pairs(wanted) do
      for place, score in pairs(names) do redis.call('ZADD', INDEXES[other], score, place) end
    end
  elseif not (wanted[index] and wanted[index][name]) then
    redis.call('ZREM', INDEXES[index], name)
  end
end
return { now }
