-- Addresses and the outcomes of the tasks that had them.

-- part: outcomes
-- addresses: address -> key of the task that has it, or had it last. outcomes: key -> until when it is kept, then status,
-- address (empty: none), error, code, each after its length, then the result; if the status ends with !, errors of attempts
-- precede the result, after their length in 4 bytes. kept: `o` and keys of outcomes, or `g` and number of an ended group ->
-- when to check whether they can be deleted.
-- KEYS: addresses outcomes kept groups errors
-- Of this step, written together by save_outcomes: key, outcome, ...; and the keys.
new_outcomes, outcome_keys = {}, {}

local function keep_outcome(key, address, ending, until_, errors)
  local error, code, result = ending.error or '', ending.code or '', ending.result or ''
  local form, status = '>I6Bc0Bc0Hc0Hc0', ending.status
  if errors then
    status, result = status .. '!', struct.pack('>I4', #errors) .. errors .. result
  end
  local stored = struct.pack(form, until_, #status, status, #address, address, #error, error, #code, code) .. result
  new_outcomes[#new_outcomes + 1], outcome_keys[#outcome_keys + 1] = key, key
  new_outcomes[#new_outcomes + 1] = stored
end

task_removed = function(key, rec, to)
  local errors = to.ending and rec.failed and redis.call('HGET', k_errors, key)
  if to.ending then keep_outcome(key, rec.address or '', to.ending, to.kept_until, errors) end
end

-- Write the outcomes of this step, all kept for the same time, and forget twice as many whose time has passed: this bounds
-- their number even if no client advances the tube.
save_outcomes = function()
  local kept, keys = new_outcomes, outcome_keys
  if #keys == 0 then return end
  new_outcomes, outcome_keys = {}, {}
  forget_expired(2 * #keys)
  call_with('HSET', k_outcomes, kept)
  if mark_changed then
    for _, key in ipairs(keys) do mark_changed('o' .. key) end
  end
  for first = 1, #keys, 100 do
    redis.call('ZADD', k_kept, struct.unpack('>I6', kept[2]), 'o' .. table.concat(keys, '', first, math.min(first + 99, #keys)))
  end
  notify_waiters()
end

-- Let the outcomes of these tasks expire within a minute, because their addresses are put again: see SUPERSEDED_MS in
-- penstock.core.ending.
local function supersede(keys)
  save_outcomes() -- one of these tasks may have ended in this step
  for i, stored in ipairs(read_many(k_outcomes, keys)) do
    if stored and struct.unpack('>I6', stored) > now + 60000 then
      redis.call('HSET', k_outcomes, keys[i], struct.pack('>I6', now + 60000) .. string.sub(stored, 7))
      redis.call('ZADD', k_kept, now + 60000, 'o' .. keys[i])
      if mark_changed then mark_changed('o' .. keys[i]) end
    end
  end
end

local function forget_outcome(key)
  local stored = redis.call('HGET', k_outcomes, key)
  if not stored or struct.unpack('>I6', stored) > now then return end
  local address = struct.unpack('>Bc0', stored, 8 + string.byte(stored, 7)) -- after its status
  if mark_changed then mark_changed('o' .. key) end
  redis.call('HDEL', k_outcomes, key)
  if redis.call('HGET', k_addresses, address) == key then redis.call('HDEL', k_addresses, address) end
end

-- Forget some outcomes and groups whose time has passed.
forget_expired = function(most)
  local done = 0
  for _, name in ipairs(redis.call('ZRANGEBYSCORE', k_kept, '-inf', now, 'LIMIT', 0, most)) do
    if done >= most then break end
    if string.sub(name, 1, 1) == 'g' then
      if mark_changed then mark_changed(name) end
      local stored = redis.call('HGET', k_groups, name)
      local newest = stored and 'l' .. string.sub(stored, 27)
      if newest and tonumber(redis.call('HGET', k_groups, newest) or 0) == struct.unpack('>I6', name, 2) then
        redis.call('HDEL', k_groups, newest)
      end
      redis.call('HDEL', k_groups, name)
      done = done + 1
    end
    for i = 2, string.sub(name, 1, 1) == 'o' and #name or 0, 6 do
      forget_outcome(string.sub(name, i, i + 5))
      done = done + 1
    end
    redis.call('ZREM', k_kept, name)
  end
end

-- script: find_outcome
-- Find the task of an address or key, or how it ended. If a key's task exists, its end will notify the caller.
-- KEYS: tasks addresses outcomes
-- ARGV: now, shape, limit, address or '', key
-- Returns: now, id of the task that has the address or had it last, 1 if it exists, outcome or nil, the last id given
-- WITH: now tube
-- FLAGS: allow-oom
local key = ARGV[4] == '' and ARGV[5] or redis.call('HGET', k_addresses, ARGV[4]) or ''
local last = tonumber(meta[1])
if key == '' then return { now, 0, 0, false, last } end
local id = struct.unpack('>I6', key)
if redis.call('HEXISTS', k_tasks, key) == 1 then
  if ARGV[4] == '' then redis.call('HSET', k_meta, 'awaited', '1') end
  return { now, id, 1, false, last }
end
local stored = redis.call('HGET', k_outcomes, key)
return { now, id, 0, stored and struct.unpack('>I6', stored) > now and stored, last }
