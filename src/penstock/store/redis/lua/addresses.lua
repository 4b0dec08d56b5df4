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

-- script: find_address
-- Find the task of an address, or how the last one ended.
-- KEYS: meta tasks addresses outcomes kept
-- ARGV: now, address
-- Returns: now, id or 0, outcome or nil, id of the task that had the address last
-- WITH: now encode decode
-- FLAGS: no-writes
if redis.call('HEXISTS', k_meta, 'last') == 0 then return { -1 } end
local key = redis.call('HGET', k_addresses, ARGV[2])
if not key then return { now, 0 } end
if redis.call('HEXISTS', k_tasks, key) == 1 then return { now, id_of(key) } end
local over = tonumber(redis.call('ZSCORE', k_kept, 'o' .. key .. ARGV[2]) or 0)
return { now, 0, over > now and redis.call('HGET', k_outcomes, key), id_of(key) }

-- script: outcome_by_id
-- Find an addressed task by its id, or how it ended. A task that exists makes the caller a waiter for its end.
-- KEYS: meta tasks outcomes kept
-- ARGV: now, key
-- Returns: now, 1 if the task exists else 0, outcome or nil
-- WITH: now
-- FLAGS: allow-oom
if redis.call('HEXISTS', k_meta, 'last') == 0 then return { -1 } end
if redis.call('HEXISTS', k_tasks, ARGV[2]) == 1 then
  redis.call('HSET', k_meta, 'awaited', '1')
  return { now, 1 }
end
local stored = redis.call('HGET', k_outcomes, ARGV[2])
if not stored then return { now, 0 } end
local address = struct.unpack('>Bc0', stored, 2 + string.byte(stored))
local over = tonumber(redis.call('ZSCORE', k_kept, 'o' .. ARGV[2] .. address) or 0)
return { now, 0, over > now and stored }
