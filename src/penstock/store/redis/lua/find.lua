-- Reads that change nothing.

-- script: find_tasks
-- Read a page of tasks in id order, in the given states, without those past their ttl.
-- KEYS: tasks
-- ARGV: now, shape, limit, states, after, most, how many ids to look at
-- Returns: now, the last id looked at, the last id given, number of tasks stored, id, record, ...
-- WITH: now tube encode decode
-- FLAGS: no-writes
local last, id, most = tonumber(meta[1]), tonumber(ARGV[5]), tonumber(ARGV[6])
local top = math.min(last, id + tonumber(ARGV[7]))
local answer = { now, 0, last, redis.call('HLEN', k_tasks) }
while id < top and #answer < 4 + 2 * most do
  local keys = {}
  for i = 1, math.min(100, top - id) do keys[i] = key_of(id + i) end
  for i, value in ipairs(redis.call('HMGET', k_tasks, unpack(keys))) do
    id = id + 1
    if value and string.find(ARGV[4], string.sub(value, 1, 1), 1, true) and #answer < 4 + 2 * most then
      local rec = decode(value)
      if rec and (rec.state == 't' or not rec.expires or rec.expires > now) then
        answer[#answer + 1] = id
        answer[#answer + 1] = value
      end
    end
  end
end
answer[2] = id
return answer

-- script: count_ahead
-- Count the ready tasks before a task.
-- KEYS: ready
-- ARGV: shape, first rank, second rank, key
-- WITH: encode
-- FLAGS: no-writes
local name = ARGV[4]
if string.find(ARGV[1], '2', 1, true) then name = sortable(tonumber(ARGV[3])) .. name end
local low = redis.call('ZCOUNT', k_ready, '-inf', '(' .. ARGV[2])
local high = redis.call('ZCOUNT', k_ready, '-inf', ARGV[2])

-- By bytes: Lua's own comparison follows the server's locale.
local function less(one, other)
  for i = 1, math.min(#one, #other) do
    local a, b = string.byte(one, i), string.byte(other, i)
    if a ~= b then return a < b end
  end
  return #one < #other
end

while low < high do -- binary search: at most 53 rounds
  local middle = math.floor((low + high) / 2)
  if less(redis.call('ZRANGE', k_ready, middle, middle)[1], name) then low = middle + 1 else high = middle end
end
return low
