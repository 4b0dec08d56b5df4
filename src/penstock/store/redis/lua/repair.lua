-- Writes that a check of the client worked out: see penstock.store.redis.checks.

-- script: repair
-- Write item by item, each unless something that it rests on has changed since.
-- KEYS: tasks ready buried taken delivered due queue members lanes addresses outcomes kept groups waits
-- ARGV: now, shape, limit, then of each item: number of guards, part, field, `=` and its value or '' for none, ...; number of
--   writes, number of words, command, part, word, ..., ...
-- Returns: now, how many of them were written
-- WITH: now tube
-- FLAGS: allow-oom
local MARKED, place, written = { tasks = 't', outcomes = 'o', groups = '' }, 3, 0

local function next_word()
  place = place + 1
  return ARGV[place]
end

local function next_key() return string.sub(k_meta, 1, -5) .. next_word() end

local function guard_holds()
  local stored = redis.call('HGET', next_key(), next_word())
  return (stored and '=' .. stored or '') == next_word()
end

local function write()
  local words, command, key = tonumber(next_word()), next_word(), next_key()
  redis.call(command, key, unpack(ARGV, place + 1, place + words))
  local letter = mark_changed and MARKED[string.match(key, '%a+$')]
  for i = 1, letter and words or 0, command == 'HSET' and 2 or 1 do mark_changed(letter .. ARGV[place + i]) end
  place = place + words
end

while place < #ARGV do
  local good = true
  for _ = 1, tonumber(next_word()) do good = guard_holds() and good end
  for _ = 1, tonumber(next_word()) do
    if good then write() else place = place + 3 + ARGV[place + 1] end
  end
  if good then written = written + 1 end
end
readied = written -- maybe
finish()
return { now, written }

-- script: repair_group
-- Recount a group from its index, hold back tasks that are ahead of its start, and let its tasks follow it.
-- ARGV: now, shape, limit, number, key of a task that is ahead, ...
-- Returns: now, readied, removed, log, follow_ups
-- WITH: now tube encode decode tasks micro_queues? lifecycle relations
-- FLAGS: allow-oom
local no = tonumber(ARGV[4])
local group, lead = group_of(no), key_of(no)
if group then
  group.left, touched[no] = redis.call('ZLEXCOUNT', k_members, '[' .. lead .. 'm', '(' .. lead .. 'n'), true
  group.total = math.max(group.total, group.left)
  if group.left > 0 and (group.state == 'd' or group.state == 'c') then
    group.state, group.over = group.state == 'd' and 's' or 'x', 0
    redis.call('ZREM', k_kept, 'g' .. lead)
  end
  if live(group) then redis.call('HSETNX', k_groups, 'n' .. group.name, no) else unname(no, group) end
  for i = 5, #ARGV do
    local rec = group.state == 'o' and fetch(ARGV[i])
    if rec and rec.state ~= 'g' and rec.state ~= '!' then
      change(ARGV[i], rec, {
        state = 'g', events = '', at = rec.at, expires = rec.expires, attempts = rec.attempts, reason = rec.reason,
      })
    end
  end
  if group.state == 's' or group.state == 'x' then redis.call('ZADD', k_moving, no, no) end
  if group.over > 0 then redis.call('ZADD', k_kept, 'NX', group.over, 'g' .. lead) end
  end_group(no, group)
end
commit()
return { now, readied, removed, log, follow_ups }
