-- part: in one tube, a handle goes, and its session ends when its end has come.
-- ARGV: now, shape, limit, session, its end, step, handle or ''
-- Answer: now, readied, removed, log, follows, more
-- KEYS: stones
-- WITH: moment base record decode step lanes? lifecycle links? unleased? advance_part
-- FLAGS: allow-oom
local session, over, more = ARGV[4], tonumber(ARGV[5]), false
if ARGV[7] ~= '' then forget_handle(ARGV[7]) end
if over <= now then
  -- Long enough to stop a call that was under way with this session.
  redis.call('ZADD', k_stones, now, session)
  redis.call('ZREMRANGEBYSCORE', k_stones, '-inf', now - 60000)
  more = release_of(session, tonumber(ARGV[6])) >= tonumber(ARGV[6])
  if not more then redis.call('ZREM', k_ends, session) end
else
  redis.call('ZADD', k_ends, 'XX', over, session)
end
close()
return { now, readied, removed, log, follows, more and 1 or 0 }
