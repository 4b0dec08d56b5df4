-- sender: tasks of this tube may reply to others. Whoever waits in vain looks for replies that were left behind there.
-- ARGV: number
-- KEYS: senders
return redis.call('SADD', k_senders, ARGV[1])
