-- The index of a pool: tasks in Redis whose durable copy is in a database.

-- part: pool_epoch
-- Refuses to run in another epoch than the caller's, EPOCH, and marks changes that are yet to be written to the database.
-- marks: `t` and key of a task, `x` and key of its errors, `o` and key of an outcome, `g` and number of a group -> the version at which it changed.
-- The database has everything that is not marked. `version` of meta is the last version; `epoch` that of the tube's load.
-- KEYS: marks
if redis.call('HGET', k_meta, 'epoch') ~= EPOCH then return { -3 } end

mark_changed = function(name)
  marked = redis.call('HINCRBY', k_meta, 'version', 1)
  redis.call('ZADD', k_marks, marked, name)
end

-- The database learns of a hand-out only when it has ended, so the lease numbers of a new epoch begin higher. The first
-- epoch begins like any store.
lease_floor = (tonumber(EPOCH) or 1) * 1024 - 1024

-- part: pool_answer
-- Ends a script in an epoch.
local answer = run()
return { marked, answer }

-- script: begin_index
-- Create the empty index of a new tube.
-- KEYS: meta
-- ARGV: epoch
if redis.call('HSETNX', k_meta, 'last', 0) == 1 then redis.call('HSET', k_meta, 'epoch', ARGV[1]) end
return 1

-- script: reset_index
-- Empty a tube's index and close it to all clients but the one that loads it, unless it is of a later epoch.
-- ARGV: epoch, field and value of meta, ...
-- Returns: 1, or 0 if another client builds it or has built it
-- WITH: contents
-- FLAGS: allow-oom
local there = string.match(redis.call('HGET', k_meta, 'epoch') or '', '^%d+')
if there and tonumber(there) > tonumber(ARGV[1]) then return 0 end
unlink_contents()
redis.call('DEL', k_meta)
if #ARGV > 1 then redis.call('HSET', k_meta, unpack(ARGV, 2)) end
redis.call('HDEL', k_meta, 'taken', 'delayed', 'buried', 'take_waits', 'full')
redis.call('HSETNX', k_meta, 'last', redis.call('HGET', k_meta, 'frozen') or 0)
redis.call('HSET', k_meta, 'epoch', ARGV[1] .. '~')
return 1

-- script: open_index
-- Open a tube whose index is loaded, and correct its counters and those of its groups; let tasks follow their groups again.
-- Freezes the tube again if it was moved away.
-- KEYS: tasks members
-- ARGV: now, shape, limit, epoch, number of a group, ...
-- Returns: now
-- WITH: now tube encode groups write_groups count_tasks
-- FLAGS: allow-oom
for i = 5, #ARGV do
  local no, group, key = tonumber(ARGV[i]), group_of(tonumber(ARGV[i])), key_of(tonumber(ARGV[i]))
  group.left, touched[no] = redis.call('ZLEXCOUNT', k_members, '[' .. key .. 'm', '(' .. key .. 'n'), true
  group.total = math.max(group.total, group.left)
  if group.state ~= 'o' then redis.call('ZADD', k_moving, no, no) end
end
save_groups()
local missing = count_tasks() - redis.call('HLEN', k_tasks)
if missing > 0 then redis.call('HINCRBY', k_meta, 'delete', missing) end
if missing < 0 then redis.call('HINCRBY', k_meta, 'last', -missing) end
redis.call('HSET', k_meta, 'epoch', ARGV[4])
if redis.call('HEXISTS', k_meta, 'frozen') == 1 then redis.call('HDEL', k_meta, 'last') end
notify()
return { now }

-- part: turns
-- One of the clients with changes writes for all; the others wait here, not for the tube's row in the database.
-- turn: name of the writing client, for at most a second. waiting: name of a client -> the version that it waits for.
-- turn:<name>: list that ends a client's wait: the version that is written, also `written` of meta, or 0 for its turn.
-- KEYS: meta turn waiting
local function begin_turn(name)
  redis.call('ZREM', k_waiting, name)
  redis.call('SET', k_turn, name, 'PX', 1000)
end

-- script: collect_changes
-- Begin a client's turn, or let it wait. In its turn, read a page of changes that are yet to be written to the database; also
-- of a tube that was moved away.
-- KEYS: meta tasks outcomes groups outbox inbox marks errors
-- ARGV: epoch, name of the client, version that it waits for, version to begin after, most, 1 to write what the tube stores
--   beside its tasks even if nothing is marked
-- Returns: -3 (another epoch), -1 (the client is to wait), 0 (that version is written) or the last version; the version that is
--   written; {meta, outbox, inbox}; then for each mark its name, its version and what is stored now: a task's record, its
--   errors, an outcome, {record, end work, cancel work} of a group; '' for what does not exist
-- WITH: turns
-- FLAGS: allow-oom
local epoch, version, written = unpack(redis.call('HMGET', k_meta, 'epoch', 'version', 'written'))
if epoch ~= ARGV[1] then return { -3 } end
written = tonumber(written or 0)
if written >= tonumber(ARGV[3]) and ARGV[6] == '0' then return { 0, written } end
local holder = redis.call('GET', k_turn)
if holder and holder ~= ARGV[2] then
  redis.call('ZADD', k_waiting, ARGV[3], ARGV[2])
  redis.call('EXPIRE', k_waiting, 5)
  return { -1, written }
end
begin_turn(ARGV[2])
if ARGV[6] == '1' then version = redis.call('HINCRBY', k_meta, 'version', 1) end

local function stored_of(name)
  local letter, key = string.sub(name, 1, 1), string.sub(name, 2)
  if letter == 't' then return redis.call('HGET', k_tasks, key) or '' end
  if letter == 'g' then
    local found = redis.call('HMGET', k_groups, 'g' .. key, 'e' .. key, 'c' .. key)
    return { found[1] or '', found[2] or '', found[3] or '' }
  end
  return redis.call('HGET', letter == 'x' and k_errors or k_outcomes, key) or ''
end

local beside = {
  redis.call('HGETALL', k_meta), redis.call('ZRANGE', k_outbox, 0, -1, 'WITHSCORES'), redis.call('HGETALL', k_inbox),
}
local answer = { tonumber(version or 0), written, beside }
local after = math.max(tonumber(ARGV[4]), written)
local found = redis.call('ZRANGEBYSCORE', k_marks, '(' .. after, '+inf', 'WITHSCORES', 'LIMIT', 0, ARGV[5])
for i = 1, #found, 2 do
  local n = #answer
  answer[n + 1], answer[n + 2], answer[n + 3] = found[i], tonumber(found[i + 1]), stored_of(found[i])
end
return answer

-- script: clear_changes
-- End a client's turn. Removes the marks up to a version that the database has, and the payloads of these tasks. Wakes the
-- clients that wait for this version, and the next client to write.
-- KEYS: meta tasks marks
-- ARGV: epoch, version, most, name of the client
-- Returns: 1 if there are more marks (-3: another epoch)
-- WITH: encode decode turns
-- FLAGS: allow-oom
if redis.call('HGET', k_meta, 'epoch') ~= ARGV[1] then return { -3 } end
local function call(name, word)
  redis.call('RPUSH', k_turn .. ':' .. name, word)
  redis.call('EXPIRE', k_turn .. ':' .. name, 5)
end

local written = math.max(tonumber(ARGV[2]), tonumber(redis.call('HGET', k_meta, 'written') or 0))
redis.call('HSET', k_meta, 'written', written)
for _, name in ipairs(redis.call('ZRANGEBYSCORE', k_waiting, '-inf', written)) do call(name, written) end
redis.call('ZREMRANGEBYSCORE', k_waiting, '-inf', written)
if (redis.call('GET', k_turn) or ARGV[4]) == ARGV[4] then
  local next = redis.call('ZRANGE', k_waiting, 0, 0)[1]
  redis.call('DEL', k_turn)
  if next then
    begin_turn(next)
    call(next, 0)
  end
end
local names = redis.call('ZRANGEBYSCORE', k_marks, '-inf', written, 'LIMIT', 0, ARGV[3])
for _, name in ipairs(names) do
  local key = string.sub(name, 2)
  local value = string.sub(name, 1, 1) == 't' and redis.call('HGET', k_tasks, key)
  local rec = value and decode(value)
  if rec and rec.payload ~= '' then
    redis.call('HSET', k_tasks, key, string.sub(value, 1, #value - #rec.payload))
  end
end
if #names > 0 then redis.call('ZREM', k_marks, unpack(names)) end
return { #names == tonumber(ARGV[3]) and 1 or 0 }
