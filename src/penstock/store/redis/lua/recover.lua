-- recover: hand out again up to count delivered messages, from the first on, up to one that is younger than so many ms.
-- ARGV: now, shape, limit, count, elapsed
-- Answer: now, readied, removed, log, follows, id, record, …
-- WITH: moment base record decode step unleased handout
-- FLAGS: allow-oom
local elapsed, handed, young = tonumber(ARGV[5]), {}, false
-- Each goes to the end, behind all that were there: no more than were there, and none comes twice.
local left_over = head[2] == '1' and 0 or math.min(tonumber(ARGV[4]), redis.call('ZCARD', k_delivered))
while left_over > 0 and not young do
  local page, keys, recs = redis.call('ZRANGE', k_delivered, 0, math.min(left_over, 1000) - 1), {}, {}
  for i, value in ipairs(redis.call('HMGET', k_tasks, unpack(page))) do
    local rec = value and decode(value)
    if not rec then
      redis.call('ZREM', k_delivered, page[i])
    elseif (rec.taken or 0) + elapsed > now then
      young = true
      break
    else
      keys[#keys + 1], recs[#recs + 1] = page[i], rec
    end
  end
  hand_over(keys, recs, handed)
  left_over = left_over - #page
end
count('take', #handed / 2)
close()
return { now, readied, removed, log, follows, handed }
