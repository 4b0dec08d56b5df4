-- Addresses and the outcomes of the tasks that had them.

-- part: outcomes
-- addresses: address -> key of the task that has it, or had it last. outcomes: key -> status, address, error, code, each
-- after its length, then the result. kept: `o`, key and address of an outcome, or `g` and number of an ended group -> when it
-- is forgotten.
-- KEYS: addresses outcomes kept
local function kept_name(key, address) return 'o' .. key .. address end

local function keep_outcome(key, address, ending, until_)
  local error, code = ending.error or '', ending.code or ''
  if mark_changed then mark_changed('o' .. key) end
  local lead = struct.pack('>Bc0Bc0Hc0Hc0', #ending.status, ending.status, #address, address, #error, error, #code, code)
  redis.call('HSET', k_outcomes, key, lead .. (ending.result or ''))
  redis.call('ZADD', k_kept, until_, kept_name(key, address))
end

-- The address is put again: its last outcome is forgotten within a minute; see SUPERSEDED_MS in penstock.core.ending.
local function supersede(address)
  local key = redis.call('HGET', k_addresses, address)
  if not key then return end
  redis.call('ZADD', k_kept, 'XX', 'LT', now + 60000, kept_name(key, address))
  if mark_changed then mark_changed('o' .. key) end
end

-- Forget some outcomes and groups whose time has passed.
forget_expired = function(most)
  for _, name in ipairs(redis.call('ZRANGEBYSCORE', k_kept, '-inf', now, 'LIMIT', 0, most)) do
    local key, address = string.sub(name, 2, 7), string.sub(name, 8)
    if mark_changed then mark_changed(string.sub(name, 1, 7)) end
    if string.sub(name, 1, 1) == 'g' then
      redis.call('HDEL', k_groups, name)
    else
      redis.call('HDEL', k_outcomes, key)
      if redis.call('HGET', k_addresses, address) == key then redis.call('HDEL', k_addresses, address) end
    end
    redis.call('ZREM', k_kept, name)
  end
end

-- script: find_outcome
-- Find the task of an address, or of a key, or how it ended. A task that exists makes the caller of a key a waiter for its end.
-- KEYS: tasks addresses outcomes kept
-- ARGV: now, shape, limit, address or '', key
-- Returns: now, id of the task that has the address or had it last, 1 if it exists, outcome or nil
-- WITH: now tube
-- FLAGS: allow-oom
local key = ARGV[4] == '' and ARGV[5] or redis.call('HGET', k_addresses, ARGV[4]) or ''
if key == '' then return { now, 0, 0, false } end
local id = struct.unpack('>I6', key)
if redis.call('HEXISTS', k_tasks, key) == 1 then
  if ARGV[4] == '' then redis.call('HSET', k_meta, 'awaited', '1') end
  return { now, id, 1, false }
end
local stored = redis.call('HGET', k_outcomes, key)
local address = stored and struct.unpack('>Bc0', stored, 2 + string.byte(stored))
local over = stored and redis.call('ZSCORE', k_kept, 'o' .. key .. address)
return { now, id, 0, over and tonumber(over) > now and stored }
