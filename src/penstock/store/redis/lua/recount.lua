-- recount: put right what the counters say, by how much they are wrong, and forget waits of handles that are gone.
-- ARGV: by how much taken, delayed and buried are too low, how many more are gone than was counted, handle, …
-- KEYS: meta waits
-- FLAGS: allow-oom
for i, name in ipairs({ 'taken', 'delayed', 'buried', 'delete' }) do
  if tonumber(ARGV[i]) ~= 0 then redis.call('HINCRBY', k_meta, name, ARGV[i]) end
end
for i = 5, #ARGV do redis.call('HDEL', k_waits, ARGV[i]) end
return 1
