-- drop: remove the tube, unless tasks are taken or someone waits.
-- ARGV: now
-- Answer: now, taken, waiting; both 0: it is gone
-- KEYS: tasks ready due buried taken lanes queue idle lapses handles ends stones waits
-- WITH: moment base
-- FLAGS: allow-oom
local taken = redis.call('ZCARD', k_taken)
local waiting = redis.call('HLEN', k_waits)
if taken == 0 and waiting == 0 then redis.call('UNLINK', unpack(KEYS)) end
return { now, taken, waiting }
