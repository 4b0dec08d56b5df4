-- Part: how addressed tasks ended, and until when that is kept.
-- KEYS: addresses outcomes kept
-- addresses: address -> key of the task that has it, or of the last one that had. outcomes: key -> status, address, error,
-- code, each behind its length, then the result. kept: `o`, key and address of an outcome, `g` and number of a group that
-- is over -> when it is forgotten.
local function lasting(key, address) return 'o' .. key .. address end

local function keep(key, address, ending, until_)
  local error, code = ending.error or '', ending.code or ''
  if mark then mark('o' .. key) end
  local lead = struct.pack('>Bc0Bc0Hc0Hc0', #ending.status, ending.status, #address, address, #error, error, #code, code)
  redis.call('HSET', k_outcomes, key, lead .. (ending.result or ''))
  redis.call('ZADD', k_kept, until_, lasting(key, address))
end

-- The address is put again: its last outcome goes in a minute, if not sooner; see SUPERSEDED_MS in penstock.core.ending.
local function supersede(address)
  local key = redis.call('HGET', k_addresses, address)
  if not key then return end
  redis.call('ZADD', k_kept, 'XX', 'LT', now + 60000, lasting(key, address))
  if mark then mark('o' .. key) end
end

-- Forget some whose time is over.
sweep = function(most)
  for _, name in ipairs(redis.call('ZRANGEBYSCORE', k_kept, '-inf', now, 'LIMIT', 0, most)) do
    local key, address = string.sub(name, 2, 7), string.sub(name, 8)
    if mark then mark(string.sub(name, 1, 7)) end
    if string.sub(name, 1, 1) == 'g' then
      redis.call('HDEL', k_groups, name)
    else
      redis.call('HDEL', k_outcomes, key)
      if redis.call('HGET', k_addresses, address) == key then redis.call('HDEL', k_addresses, address) end
    end
    redis.call('ZREM', k_kept, name)
  end
end
