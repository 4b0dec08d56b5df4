-- Part: hand-outs without a lease, as penstock.core.handout says: an element stays ready, behind all that were handed out
-- before, a message stands at the end of the delivered ones.
local serial

-- Hand out up to a thousand tasks; adds id, record, … to `found`.
local function hand_over(keys, recs, found)
  local tasks, places = {}, {}
  serial = serial or tonumber(redis.call('HGET', k_meta, 'take') or 0)
  for i, rec in ipairs(recs) do
    serial = serial + 1
    rec.attempts, rec.taken, rec.rank1 = rec.attempts + 1, now, clocked and now or serial
    if not clocked then rec.state = 't' end
    local value = encode(rec)
    if mark then mark('t' .. keys[i]) end
    tasks[2 * i - 1], tasks[2 * i] = keys[i], value
    places[2 * i - 1], places[2 * i] = rec.rank1, keys[i]
    found[#found + 1] = id_of(keys[i])
    found[#found + 1] = value
  end
  if #keys > 0 then
    redis.call('HSET', k_tasks, unpack(tasks))
    redis.call('ZADD', clocked and k_ready or k_delivered, unpack(places))
  end
end
