-- unsender: a dropped tube has left all its replies.
-- ARGV: number
-- KEYS: senders
-- FLAGS: allow-oom
return redis.call('SREM', k_senders, ARGV[1])
