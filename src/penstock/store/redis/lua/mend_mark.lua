-- mend_mark: the last message id of a tube is at least this one.
-- ARGV: ms, seq
-- KEYS: meta
-- FLAGS: allow-oom
local last = redis.call('HMGET', k_meta, 'ms', 'seq')
local ms, seq = tonumber(last[1] or 0), tonumber(last[2] or 0)
if ms < tonumber(ARGV[1]) or (ms == tonumber(ARGV[1]) and seq < tonumber(ARGV[2])) then
  redis.call('HSET', k_meta, 'ms', ARGV[1], 'seq', ARGV[2])
end
return 1
