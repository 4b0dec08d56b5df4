-- put_plain: store one task of a put that says nothing but its data, ready at once, in a tube without micro-queues and
-- capacity. Its record comes in pieces: see new_pieces in penstock.store.redis.record.
-- ARGV: now, record up to created, from there to expires, ttl or '', record up to the data, first rank, second rank as it
--   stands in the ready index or '', data
-- Answer: now, id
-- KEYS: meta tasks ready due
-- WITH: moment
local head = redis.call('HMGET', k_meta, 'last', 'asked')
if not head[1] then return { -1 } end
local id, expires = head[1] + 1, ''
local key = struct.pack('>I6', id)
if ARGV[4] ~= '' then
  expires = struct.pack('>I6', now + ARGV[4])
  redis.call('ZADD', k_due, now + ARGV[4], key)
end
redis.call('HSET', k_tasks, key, ARGV[2] .. struct.pack('>I6', now) .. ARGV[3] .. expires .. ARGV[5] .. ARGV[8])
redis.call('ZADD', k_ready, ARGV[6], ARGV[7] .. key)
redis.call('HSET', k_meta, 'last', id)
if head[2] then -- as in base.lua
  redis.call('HDEL', k_meta, 'asked')
  local prefix, no = string.match(k_meta, '^{(.*):(%d+)}:meta$')
  redis.call('PUBLISH', prefix .. ':news', no)
end
return { now, id }
