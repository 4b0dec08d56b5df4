-- truncate: remove one page of tasks up to an id, leases too.
-- ARGV: now, shape, limit, cursor, page size, the last id to remove or '' for the newest
-- Answer: now, readied, removed, log, follows, next cursor, last id, places in the log of those it removed; others were
--   past their ttl or gone with their group
-- WITH: moment base record decode step lanes? lifecycle links? unleased?
-- FLAGS: allow-oom
local last_id = tonumber(ARGV[6]) or tonumber(head[1])
local page = redis.call('HSCAN', k_tasks, ARGV[4], 'COUNT', ARGV[5])
local sooner, later, places = {}, {}, {}

-- Those behind their micro-queue first, so that few become ready on the way.
for i = 1, #page[2], 2 do
  local key = page[2][i]
  local id = id_of(key)
  local rec = id <= last_id and (fetch(key) or fetch(key)) -- one that could not be read is a buried one now
  if rec then
    local ids = rec.state == 'q' and sooner or later
    ids[#ids + 1] = id
  elseif id <= last_id and redis.call('HDEL', k_tasks, key) == 1 then
    count('delete', 1) -- bytes that are no task
  end
end
for _, ids in ipairs({ sooner, later }) do
  table.sort(ids)
  for _, id in ipairs(ids) do
    local key = key_of(id)
    local rec = fetch(key)
    if rec and rec.group_no and cancelled(rec) then
      change(key, rec, removed_by(rec, 'delete'))
    elseif rec and expired(rec) then
      change(key, rec, became_due(rec))
    elseif rec then
      places[#places + 1] = change(key, rec, removed_by(rec, 'delete'))
    end
  end
end
close()
return { now, readied, removed, log, follows, page[1], last_id, places }
