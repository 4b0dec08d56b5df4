-- load_links: outcomes and groups as the database has them; before the tasks. Who loads counts the groups afterwards.
-- ARGV: now, shape, limit, name, value, …; names: `o` and key of an outcome, whose value begins with the moment it is kept
--   until; `g`, `e`, `c` and number of a group: its record, end work and cancel work
-- Answer: now
-- KEYS: addresses outcomes kept groups
-- WITH: moment base
for i = 4, #ARGV, 2 do
  local name, value = ARGV[i], ARGV[i + 1]
  local letter, key = string.sub(name, 1, 1), string.sub(name, 2)
  if letter == 'o' then
    local over, stored = struct.unpack('>I6', value), string.sub(value, 7)
    local address = struct.unpack('>Bc0', stored, 2 + string.byte(stored))
    redis.call('HSET', k_outcomes, key, stored)
    redis.call('ZADD', k_kept, over, name .. address)
    redis.call('HSET', k_addresses, address, key)
  else
    redis.call('HSET', k_groups, name, value)
  end
  if letter == 'g' then
    local state, _, _, over, place = struct.unpack('>c1I6I6I6', value)
    if over > 0 then redis.call('ZADD', k_kept, over, name) end
    if state == 'o' or state == 's' then
      redis.call('HSET', k_groups, 'n' .. string.sub(value, place), (struct.unpack('>I6', key)))
    end
  end
end
return { now }
