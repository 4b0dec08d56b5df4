-- release_all: release up to count taken tasks, whoever holds them, once nothing is due any more.
-- ARGV: now, shape, limit, step of advance, count
-- Answer: now, readied, removed, log, follows, more is due (then nothing was released), places in the log, still taken
-- WITH: moment base record decode step lanes? lifecycle links? advance_part
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
      places[#places + 1] = change(key, rec, came_back(rec, 'release', 0, false))
    else
      redis.call('ZREM', k_taken, key)
    end
  end
end
close()
return { now, readied, removed, log, follows, more and 1 or 0, places, redis.call('ZCARD', k_taken) }
