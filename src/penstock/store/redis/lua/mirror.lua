-- mirror: in one tube, handles and their sessions go on, if they are known there.
-- ARGV: handle or '', its lapse, session, its end, …
-- KEYS: lapses ends
-- FLAGS: allow-oom
for i = 1, #ARGV, 4 do
  if ARGV[i] ~= '' then redis.call('ZADD', k_lapses, 'XX', ARGV[i + 1], ARGV[i]) end
  redis.call('ZADD', k_ends, 'XX', ARGV[i + 3], ARGV[i + 2])
end
return 1
