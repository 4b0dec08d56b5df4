-- Part: take from the first of several tubes of one server that has anything, in one step. The scripts that take from
-- each of their sorts stand before it as functions of KEYS and ARGV, in `takes`: run, and where meta and handles are among
-- their keys; `unlinked` where they know nothing of addresses, replies and groups.
-- ARGV: how many tubes, now, handle, count, highest first rank or '', blocked, step of advance; then of each tube: which of
--   the takes, how many keys, shape, limit
-- Answer: 1, tube, answer of its take, …; or -1 and a tube that is not there; or 0 where a tube does not know the handle, or
--   has links that its take knows nothing of, and nothing was done
local tubes, from = {}, 0
for i = 1, tonumber(ARGV[1]) do
  local at = 4 * (i - 1) + 8
  local take, keys = takes[tonumber(ARGV[at])], {}
  for k = 1, tonumber(ARGV[at + 1]) do keys[k] = KEYS[from + k] end
  from = from + #keys
  local head = redis.call('HMGET', keys[take.meta], 'last', 'facts')
  if not head[1] then return { -1, i } end
  if head[2] and take.unlinked then return { 0 } end
  if redis.call('HEXISTS', keys[take.handles], ARGV[3]) == 0 then return { 0 } end
  tubes[i] = { take = take, keys = keys, shape = ARGV[at + 2], limit = ARGV[at + 3] }
end

local answer = { 1 }
local function visit(i, count, blocked)
  local tube = tubes[i]
  local found = tube.take.run(tube.keys, { ARGV[2], tube.shape, tube.limit, ARGV[3], count, ARGV[5], blocked, ARGV[7] })
  answer[#answer + 1], answer[#answer + 2] = i, found
  return found[6] == 0 or #found[8] > 0
end

-- Something came from one: the others that counted the caller in count it out.
local function count_out(found)
  for i = 1, #tubes do
    local counted = ARGV[6] == 'stay' or (ARGV[6] == 'enter' and i < found) or (ARGV[6] == 'leave' and i > found)
    if i ~= found and counted then visit(i, 0, 'leave') end
  end
end

for i = 1, #tubes do
  if visit(i, ARGV[4], ARGV[6]) then
    count_out(i)
    break
  end
end
return answer
