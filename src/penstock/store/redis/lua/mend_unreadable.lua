-- mend_unreadable: make buried tasks of bytes that penstock did not write, and give them, and those that a step has buried,
-- what led to them; indexes and counters come after. In a tube that leases nothing they are its tasks again, never handed
-- out yet.
-- ARGV: now, shape, limit, then of each: key, address (or the id that people know it by) or '', number and name of its
--   group or '' and ''
-- Answer: now
-- KEYS: addresses members
-- WITH: moment base record decode step unleased?
-- FLAGS: allow-oom
for i = 4, #ARGV, 4 do
  local key, value = ARGV[i], redis.call('HGET', k_tasks, ARGV[i])
  local rec = value and decode(value)
  if value and not rec then
    rec = unreadable(value)
    if delivered then
      rec.state, rec.reason = 'r', nil
      if ARGV[i + 1] == '' then name_reply(key, rec) end
    else
      redis.call('HINCRBY', k_meta, 'bury', 1)
    end
  end
  if rec then
    if redis.call('HGET', k_addresses, ARGV[i + 1]) == key then rec.address = ARGV[i + 1] end
    local no = tonumber(ARGV[i + 2])
    if no and redis.call('ZSCORE', k_members, key_of(no) .. 'm' .. key) then rec.group_no, rec.group = no, ARGV[i + 3] end
    save(key, rec)
    if mark then mark('t' .. key) end
  end
end
return { now }
