-- drop: remove the tube, unless tasks are taken or someone waits. One that may have to reply leaves a ghost: `ghost` of
-- meta is its name; its tasks are there, until outbox has made their replies.
-- ARGV: now, name, 1: anyhow
-- Answer: now, taken, waiting, 1 when it left a ghost; taken and waiting 0: it is gone
-- KEYS: tasks ready due buried taken delivered lanes queue idle lapses handles ends stones waits
-- KEYS: addresses outcomes kept groups members moving outbox inbox marks
-- WITH: moment base
-- FLAGS: allow-oom
local taken = redis.call('ZCARD', k_taken) + redis.call('ZCARD', k_delivered)
local waiting, replies = redis.call('HLEN', k_waits), 0
if ARGV[3] == '1' or (taken == 0 and waiting == 0) then
  replies = redis.call('HEXISTS', k_meta, 'posted')
  local gone = {}
  for _, key in ipairs(KEYS) do
    if replies == 0 or (key ~= k_meta and key ~= k_tasks and key ~= k_outbox) then gone[#gone + 1] = key end
  end
  redis.call('UNLINK', unpack(gone))
  if replies == 1 then
    redis.call('HDEL', k_meta, 'last')
    redis.call('HSET', k_meta, 'ghost', ARGV[2])
  end
  tell()
end
return { now, taken, waiting, replies }
