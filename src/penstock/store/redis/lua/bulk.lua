-- Calls on many tasks of a tube, a bounded number a call.

-- script: kick
-- Kick up to count buried tasks in take order, once nothing is due.
-- ARGV: now, shape, limit, step of advance, count
-- Returns: now, readied, removed, log, follow_ups, 1 if more is due (then nothing was kicked), {places in the log}
-- WITH: now tube encode decode tasks micro_queues? lifecycle relations? advance
-- FLAGS: allow-oom
local more, places = advance(tonumber(ARGV[4])), {}
if not more then
  for i, name in ipairs(redis.call('ZRANGE', k_buried, 0, tonumber(ARGV[5]) - 1)) do
    local key = key_in(name)
    local rec = fetch(key)
    if rec then
      local to = { state = 'r', events = 'kick', at = rec.expires, expires = rec.expires, attempts = 0 }
      places[#places + 1] = change(key, rec, to)
    else
      redis.call('ZREM', k_buried, name)
    end
  end
end
commit()
return { now, readied, removed, log, follow_ups, more and 1 or 0, places }

-- script: release_all
-- Release up to count taken tasks, whoever holds them, once nothing is due.
-- ARGV: now, shape, limit, step of advance, count
-- Returns: now, readied, removed, log, follow_ups, 1 if more is due (then nothing was released), {places in the log},
--   how many are still taken
-- WITH: now tube encode decode tasks micro_queues? lifecycle relations? advance
-- FLAGS: allow-oom
local more, places = advance(tonumber(ARGV[4])), {}
if not more then
  local ids = {}
  for i, key in ipairs(redis.call('ZRANGE', k_taken, 0, tonumber(ARGV[5]) - 1)) do ids[i] = id_of(key) end
  table.sort(ids)
  for _, id in ipairs(ids) do
    local key = key_of(id)
    local rec = fetch(key)
    if rec then
      places[#places + 1] = change(key, rec, lease_ended(rec, 'release', 0, false))
    else
      redis.call('ZREM', k_taken, key)
    end
  end
end
commit()
return { now, readied, removed, log, follow_ups, more and 1 or 0, places, redis.call('ZCARD', k_taken) }

-- script: truncate
-- Remove one page of tasks up to an id, taken ones too.
-- ARGV: now, shape, limit, cursor, page size, the last id to remove or '' for the newest
-- Returns: now, readied, removed, log, follow_ups, next cursor, last id, {places in the log}; tasks past their ttl or of
--   a cancelled group are in the log only
-- WITH: now tube encode decode tasks micro_queues? lifecycle relations? unleased?
-- FLAGS: allow-oom
local last_id = tonumber(ARGV[6]) or tonumber(meta[1])
local page = redis.call('HSCAN', k_tasks, ARGV[4], 'COUNT', ARGV[5])
local sooner, later, places = {}, {}, {}

-- Waiting tasks first, so that few become ready on the way.
for i = 1, #page[2], 2 do
  local key = page[2][i]
  local id = id_of(key)
  local rec = id <= last_id and (fetch(key) or fetch(key)) -- an unreadable task is buried by the first fetch
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
      change(key, rec, deadline_passed(rec))
    elseif rec then
      places[#places + 1] = change(key, rec, removed_by(rec, 'delete'))
    end
  end
end
commit()
return { now, readied, removed, log, follow_ups, page[1], last_id, places }
