-- mend_unreadable: make buried tasks of bytes that penstock did not write; indexes and counters come after. In a tube that
-- leases nothing they are its tasks again, never handed out yet.
-- ARGV: now, shape, limit, then pairs: key, and the id that people know it by, or ''
-- Answer: now
-- WITH: moment base record decode step unleased?
-- FLAGS: allow-oom
for i = 4, #ARGV, 2 do
  local key, value = ARGV[i], redis.call('HGET', k_tasks, ARGV[i])
  if value and not decode(value) then
    local rec = unreadable(value)
    if delivered then
      rec.state, rec.reason, rec.address = 'r', nil, ARGV[i + 1]
      if rec.address == '' then name_reply(key, rec) end
    else
      redis.call('HINCRBY', k_meta, 'bury', 1)
    end
    save(key, rec)
    if mark then mark('t' .. key) end
  end
end
return { now }
