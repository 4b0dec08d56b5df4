-- truncate: remove one page of tasks up to an id, leases too.
-- ARGV: now, shape, limit, cursor, page size, the last id to remove or '' for the newest
-- Answer: now, readied, removed, log, next cursor, last id
-- WITH: moment base record decode step lanes? lifecycle
-- FLAGS: allow-oom
local last = tonumber(ARGV[6]) or tonumber(head[1])
local page = redis.call('HSCAN', k_tasks, ARGV[4], 'COUNT', ARGV[5])
local later = {}

local function remove(key, rec)
  if expired(rec) then change(key, rec, became_due(rec)) else change(key, rec, removed_by(rec, 'delete')) end
end

-- Those behind their micro-queue first, so that few become ready on the way.
for i = 1, #page[2], 2 do
  local key = page[2][i]
  local rec = id_of(key) <= last and fetch(key)
  if rec and rec.state == 'q' then
    remove(key, rec)
  elseif rec then
    later[#later + 1] = key
  elseif id_of(key) <= last and redis.call('HDEL', k_tasks, key) == 1 then
    count('delete', 1) -- bytes that are no task
  end
end
for _, key in ipairs(later) do
  local rec = fetch(key)
  if rec then remove(key, rec) end
end
if save_lanes then save_lanes() end
finish()
return { now, readied, removed, log, page[1], last }
