-- seal: nobody finds the tube any more: its last id stands under `sealed` of meta, and `moved` says where it went.
-- ARGV: where it goes, the turn in which the tube is sealed, 1: only while that is its turn
-- Answer: now, 0: it is sealed, 1: tasks are leased, 2: tasks follow their groups, 3: its turn is another
-- `sealed_in` of meta: that turn.
-- KEYS: meta taken moving waits
-- FLAGS: allow-oom
local last, turn = unpack(redis.call('HMGET', k_meta, 'last', 'turn'))
if not last then
  local sealed = redis.call('HEXISTS', k_meta, 'sealed')
  if sealed == 1 then redis.call('HSET', k_meta, 'sealed_in', ARGV[2]) end
  return { sealed - 1, 0 }
end
if ARGV[3] == '1' and (turn or '0') ~= ARGV[2] then return { 0, 3 } end
if redis.call('EXISTS', k_taken) == 1 then return { 0, 1 } end
if redis.call('EXISTS', k_moving) == 1 then return { 0, 2 } end
redis.call('HSET', k_meta, 'sealed', last, 'sealed_in', ARGV[2], 'moved', ARGV[1])
redis.call('HDEL', k_meta, 'last')
redis.call('DEL', k_waits)
local prefix, no = string.match(k_meta, '^{(.*):(%d+)}:meta$')
redis.call('PUBLISH', prefix .. ':news', no)
return { 0, 0 }
