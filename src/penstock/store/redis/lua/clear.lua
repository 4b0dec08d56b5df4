-- clear: the database has all that was marked up to a version. Data that it has is not kept here.
-- ARGV: now, shape, limit, version, most
-- Answer: now, 1 while there is more to clear
-- KEYS: tasks marks
-- WITH: moment base record decode
-- FLAGS: allow-oom
local names = redis.call('ZRANGEBYSCORE', k_marks, '-inf', ARGV[4], 'LIMIT', 0, ARGV[5])
for _, name in ipairs(names) do
  local key = string.sub(name, 2)
  local value = string.sub(name, 1, 1) == 't' and redis.call('HGET', k_tasks, key)
  local rec = value and decode(value)
  if rec and rec.payload ~= '' then
    redis.call('HSET', k_tasks, key, string.sub(value, 1, #value - #rec.payload))
  end
end
if #names > 0 then redis.call('ZREM', k_marks, unpack(names)) end
return { now, #names == tonumber(ARGV[5]) and 1 or 0 }
