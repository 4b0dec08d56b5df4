-- ahead: how many takeable tasks come before a place.
-- ARGV: shape, first rank, second rank, key
-- KEYS: ready
-- WITH: record
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

while low < high do -- halving: at most 53 rounds
  local middle = math.floor((low + high) / 2)
  if less(redis.call('ZRANGE', k_ready, middle, middle)[1], name) then low = middle + 1 else high = middle end
end
return low
