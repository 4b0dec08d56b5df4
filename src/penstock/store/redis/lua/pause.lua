-- pause: pause a tube, or let it go on and tell those who wait.
-- ARGV: now, 1 or 0
-- Answer: now, how often it was asked for: `turn` of meta
-- WITH: moment base
-- FLAGS: allow-oom
if ARGV[2] == '1' then
  redis.call('HSET', k_meta, 'paused', '1')
else
  redis.call('HDEL', k_meta, 'paused')
  if head[3] then tell() end
end
return { now, redis.call('HINCRBY', k_meta, 'turn', 1) }
