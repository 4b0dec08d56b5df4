-- named: the tasks with these texts as ids.
-- ARGV: now, id, …
-- Answer: now, id, record or nil, …
-- KEYS: meta tasks addresses
-- WITH: moment record decode
-- FLAGS: no-writes
if redis.call('HEXISTS', k_meta, 'last') == 0 then return { -1 } end
local answer = { now }
for i = 2, #ARGV do
  local key = redis.call('HGET', k_addresses, ARGV[i])
  answer[2 * i - 2] = key and id_of(key) or 0
  answer[2 * i - 1] = key and redis.call('HGET', k_tasks, key)
end
return answer
