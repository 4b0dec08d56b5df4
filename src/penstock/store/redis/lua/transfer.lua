-- Moving tubes between stores.

-- script: freeze_tube
-- Freeze a tube that is moved away, so that no script finds it: `sealed` of meta is its last id, `moved` where it went,
-- `sealed_in` the turn in which it was frozen.
-- KEYS: meta taken moving waits
-- ARGV: where it goes, the turn, 1: only while that is the tube's turn
-- Returns: 0 (-1: no such tube), and 0: frozen, 1: tasks are leased, 2: tasks must still follow their groups, 3: the tube
--   is in another turn
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
redis.call('PUBLISH', prefix .. ':tube_changed', no)
return { 0, 0 }

-- script: unfreeze_tube
-- Undo the freeze of a shard by an interrupted move, unless it was frozen in this turn or later.
-- KEYS: meta
-- ARGV: turn
-- FLAGS: allow-oom
local sealed = redis.call('HMGET', k_meta, 'sealed', 'sealed_in')
if not sealed[1] or tonumber(sealed[2]) >= tonumber(ARGV[1]) then return 0 end
redis.call('HSET', k_meta, 'last', sealed[1])
return redis.call('HDEL', k_meta, 'sealed', 'sealed_in', 'moved')

-- script: erase_tube
-- Delete the tasks of a tube that was moved away, or whose import failed, with everything that depends on them; the memory is
-- freed in the background. `erased` of meta says that nothing of a frozen tube is left.
-- KEYS: meta tasks ready due buried taken delivered lanes queue idle lapses handles ends ended_sessions
-- KEYS: addresses outcomes kept groups members moving marks
-- FLAGS: allow-oom
if redis.call('HEXISTS', k_meta, 'sealed') == 1 then redis.call('HSET', k_meta, 'erased', 1) end
local gone = {}
for _, key in ipairs(KEYS) do
  if key ~= k_meta then gone[#gone + 1] = key end
end
return redis.call('UNLINK', unpack(gone))
