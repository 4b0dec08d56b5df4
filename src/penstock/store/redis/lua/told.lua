-- told: every tube knows that a session has ended.
-- ARGV: session
-- KEYS: ended
-- FLAGS: allow-oom
return redis.call('HDEL', k_ended, ARGV[1])
