-- get: the tasks with these ids.
-- ARGV: now, key, …
-- Answer: now, record or nil, …
-- KEYS: meta tasks
-- WITH: moment
-- FLAGS: no-writes
if redis.call('EXISTS', k_meta) == 0 then return { -1 } end
local answer = { now }
for i = 2, #ARGV do answer[i] = redis.call('HGET', k_tasks, ARGV[i]) end
return answer
