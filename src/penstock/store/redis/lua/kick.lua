-- kick: un-bury up to count tasks in take order, once nothing is due any more.
-- ARGV: now, shape, limit, step of advance, count
-- Answer: now, readied, removed, log, follows, more is due (then nothing was kicked), places in the log
-- WITH: moment base record decode step lanes? lifecycle links? advance_part
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
close()
return { now, readied, removed, log, follows, more and 1 or 0, places }
