-- The index of a pool: tasks in Redis whose durable copy is in a database.

-- part: pool_epoch
-- Refuses to run in another epoch than the caller's, EPOCH, and marks changes that are yet to be written to the database.
-- marks: `t` and key of a task, `x` and key of its errors, `o` and key of an outcome, `g` and number of a group -> the version at which it changed.
-- The database has everything that is not marked. `version` of meta is the last version; `epoch` that of the tube's load.
-- KEYS: meta marks
if redis.call('HGET', k_meta, 'epoch') ~= EPOCH then return { -3 } end

mark_changed = function(name)
  marked = redis.call('HINCRBY', k_meta, 'version', 1)
  redis.call('ZADD', k_marks, marked, name)
end

-- The database learns of a hand-out only when it has ended, so the lease numbers of a new epoch begin higher. The first
-- epoch begins like any store.
lease_floor = (tonumber(EPOCH) or 1) * 1024 - 1024

-- part: pool_answer
-- Ends a script in an epoch. It returns the version of its last mark, 0 for none; and its answer.
local answer = run()
return { marked, answer }

-- part: pool_answer_waited
-- As pool_answer, for a script whose caller, unless CLIENT is '', then waits at the list of CLIENT: for a page that it is to
-- write; or for '', once another client has written its changes, or at once if it has none.
local answer = run()
if CLIENT ~= '' then
  local page = marked > 0 and ask_turn(CLIENT, marked)
  if marked == 0 or page then tell(CLIENT, page or '') end
end
return { marked, answer }

-- script: begin_index
-- Create the empty index of a new tube.
-- KEYS: meta
-- ARGV: epoch
if redis.call('HSETNX', k_meta, 'last', 0) == 1 then redis.call('HSET', k_meta, 'epoch', ARGV[1]) end
return 1

-- script: reset_index
-- Empty a tube's index and close it to all clients but the one that loads it, unless it is of a later epoch.
-- KEYS: turn waiting
-- ARGV: epoch, what the tube stores besides its tasks if anything: see read_changes
-- Returns: 0 if another client builds it or has built it, 1, or 2 if its outbox may have entries
-- WITH: contents
-- FLAGS: allow-oom
local there = string.match(redis.call('HGET', k_meta, 'epoch') or '', '^%d+')
if there and tonumber(there) > tonumber(ARGV[1]) then return 0 end
unlink_contents()
redis.call('DEL', k_meta)
if ARGV[2] then
  local meta, outbox, inbox = unpack(cmsgpack.unpack(ARGV[2]))
  redis.call('HSET', k_meta, unpack(meta))
  for i = 1, #outbox, 2 do redis.call('ZADD', k_outbox, outbox[i + 1], outbox[i]) end
  for i = 1, #inbox, 2 do redis.call('HSET', k_inbox, inbox[i], inbox[i + 1]) end
end
redis.call('HDEL', k_meta, 'taken', 'delayed', 'buried', 'take_waits', 'full')
redis.call('HSETNX', k_meta, 'last', redis.call('HGET', k_meta, 'frozen') or 0)
redis.call('HSET', k_meta, 'epoch', ARGV[1] .. '~')
return 1 + redis.call('HEXISTS', k_meta, 'posted')

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
-- One of the clients with changes writes for all; the others wait here, not for the tube's row in the database. A client is
-- one call; its name is used once.
-- turn: name of the writing client, for at most a second. waiting: name of a client -> the version that it waits for.
-- turn:<name>: list that ends a client's wait: has changes, which it is to write, or '' if its own are written.
-- KEYS: meta tasks outcomes groups outbox inbox marks errors turn waiting

local function tell(name, page)
  redis.call('RPUSH', k_turn .. ':' .. name, page)
  redis.call('EXPIRE', k_turn .. ':' .. name, 5)
end

-- The versions of a page and its values, in one string: the length of what precedes the values in four bytes, versions and
-- lengths as msgpack, the values.
local function pack_page(versions, values)
  for i = 1, #values do versions[i + 3] = #values[i] end
  local head = cmsgpack.pack(versions)
  return struct.pack('>I4', #head) .. head .. table.concat(values)
end

-- A page of the changes after a version: the last version, the version that is written, the version to continue after if
-- there are more; what the tube stores besides its tasks; then for each mark its name and what is stored now, '' for nothing. A
-- group has three parts: `g` record, `e` end work, `c` cancel work.
local function read_changes(after)
  local version, written = unpack(redis.call('HMGET', k_meta, 'version', 'written'))
  local found = redis.call('ZRANGEBYSCORE', k_marks, '(' .. math.max(after, tonumber(written or 0)), '+inf', 'WITHSCORES',
    'LIMIT', 0, 200)
  local values = { cmsgpack.pack({
    redis.call('HGETALL', k_meta), redis.call('ZRANGE', k_outbox, 0, -1, 'WITHSCORES'), redis.call('HGETALL', k_inbox),
  }) }
  for i = 1, #found, 2 do
    local letter, key, n = string.sub(found[i], 1, 1), string.sub(found[i], 2), #values
    if letter == 'g' then
      for place, part in ipairs({ 'g', 'e', 'c' }) do
        values[n + 2 * place - 1], values[n + 2 * place] = part .. key, redis.call('HGET', k_groups, part .. key) or ''
      end
    else
      local stored = letter == 't' and k_tasks or letter == 'x' and k_errors or k_outcomes
      values[n + 1], values[n + 2] = found[i], redis.call('HGET', stored, key) or ''
    end
  end
  local more = #found == 400 and tonumber(found[400]) or 0
  return pack_page({ tonumber(version or 0), tonumber(written or 0), more }, values)
end

-- Begin or continue a client's turn and return a page of changes; or, if another has the turn, let the client wait for a
-- version.
local function ask_turn(name, version, after)
  if (redis.call('GET', k_turn) or name) ~= name then
    redis.call('ZADD', k_waiting, version, name)
    return
  end
  redis.call('SET', k_turn, name, 'PX', 1000)
  return read_changes(after or 0)
end

-- script: collect_changes
-- Ask for a turn of a client; also in a tube that was moved away.
-- ARGV: epoch, name of the client, version that it waits for, version to begin after, 1 to write what the tube stores
--   besides its tasks even if nothing is marked
-- Returns: -3 (another epoch) or 0; then a page; '' if that version is written; or nothing if another client writes
-- WITH: turns
-- FLAGS: allow-oom
local epoch, written = unpack(redis.call('HMGET', k_meta, 'epoch', 'written'))
if epoch ~= ARGV[1] then return { -3 } end
if tonumber(written or 0) >= tonumber(ARGV[3]) then return { 0, '' } end
if ARGV[5] == '1' then redis.call('HINCRBY', k_meta, 'version', 1) end
return { 0, ask_turn(ARGV[2], ARGV[3], tonumber(ARGV[4])) }

-- script: clear_changes
-- End a client's turn. Removes the marks up to a version that the database has, and the payloads of these tasks. Wakes the
-- clients that wait for this version, and the next client to write.
-- ARGV: epoch, version, most, name of the client
-- Returns: 1 if there are more marks (-3: another epoch)
-- WITH: encode decode turns
-- FLAGS: allow-oom
if redis.call('HGET', k_meta, 'epoch') ~= ARGV[1] then return { -3 } end
local written = math.max(tonumber(ARGV[2]), tonumber(redis.call('HGET', k_meta, 'written') or 0))
redis.call('HSET', k_meta, 'written', written)
local waited = redis.call('ZRANGEBYSCORE', k_waiting, '-inf', written)
for _, name in ipairs(waited) do tell(name, '') end
if #waited > 0 then redis.call('ZREM', k_waiting, unpack(waited)) end
if (redis.call('GET', k_turn) or ARGV[4]) == ARGV[4] then
  local next = redis.call('ZPOPMIN', k_waiting)[1]
  redis.call('DEL', k_turn)
  if next then tell(next, ask_turn(next)) end
end
local names, records = redis.call('ZRANGEBYSCORE', k_marks, '-inf', written, 'LIMIT', 0, ARGV[3]), {}
for _, name in ipairs(names) do
  local key = string.sub(name, 2)
  local value = string.sub(name, 1, 1) == 't' and redis.call('HGET', k_tasks, key)
  local place = value and payload_place(value)
  if place and place <= #value then
    records[#records + 1], records[#records + 2] = key, string.sub(value, 1, place - 1)
  end
end
if #records > 0 then redis.call('HSET', k_tasks, unpack(records)) end
if #names > 0 then redis.call('ZREM', k_marks, unpack(names)) end
return { #names == tonumber(ARGV[3]) and 1 or 0 }
