-- sent: these replies have been put where they go.
-- ARGV: number, …
-- KEYS: outbox
-- FLAGS: allow-oom
for i = 1, #ARGV do redis.call('ZREMRANGEBYSCORE', k_outbox, ARGV[i], ARGV[i]) end
return 1
