-- collect: what a database must hear of, some marks at a time.
-- ARGV: now, shape, limit, version to begin after, version to end with or '', most
-- Answer: now, the last version, what the tube keeps beside its tasks: meta, outbox, inbox; then for each mark its name,
--   its version and what is there now: a task's record, an outcome behind the moment it is kept until, the record of a
--   group with its end and cancel work; '' for what is not there
-- KEYS: tasks outcomes kept groups outbox inbox marks
-- WITH: moment base
-- FLAGS: no-writes
local version = tonumber(redis.call('HGET', k_meta, 'version') or 0)
local last = tonumber(ARGV[5]) or version

local function outcome_of(key)
  local stored = redis.call('HGET', k_outcomes, key)
  if not stored then return '' end
  local address = struct.unpack('>Bc0', stored, 2 + string.byte(stored))
  local over = tonumber(redis.call('ZSCORE', k_kept, 'o' .. key .. address) or 0)
  return struct.pack('>I6', over) .. stored
end

local function group_of(key)
  local found = redis.call('HMGET', k_groups, 'g' .. key, 'e' .. key, 'c' .. key)
  return { found[1] or '', found[2] or '', found[3] or '' }
end

local function there(name)
  local letter, key = string.sub(name, 1, 1), string.sub(name, 2)
  if letter == 't' then return redis.call('HGET', k_tasks, key) or '' end
  return letter == 'o' and outcome_of(key) or group_of(key)
end

local beside = {
  redis.call('HGETALL', k_meta), redis.call('ZRANGE', k_outbox, 0, -1, 'WITHSCORES'), redis.call('HGETALL', k_inbox),
}
local answer = { now, last, beside }
local found = redis.call('ZRANGEBYSCORE', k_marks, '(' .. ARGV[4], last, 'WITHSCORES', 'LIMIT', 0, ARGV[6])
for i = 1, #found, 2 do
  local n = #answer
  answer[n + 1], answer[n + 2], answer[n + 3] = found[i], tonumber(found[i + 1]), there(found[i])
end
return answer
