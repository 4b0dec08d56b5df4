-- Moving tubes between stores.

-- script: freeze_tube
-- Freeze a tube that is moved away, so that no script finds it. In meta, `frozen` is its last id, `moved` is where it went,
-- `frozen_in` is the turn in which it was frozen.
-- KEYS: meta taken moving waits
-- ARGV: where it goes, the turn, 1: only while that is the tube's turn
-- Returns: 0 (-1: no such tube), and 0: frozen, 1: tasks are leased, 2: tasks must still follow their groups, 3: the tube
--   is in another turn
-- FLAGS: allow-oom
local last, turn = unpack(redis.call('HMGET', k_meta, 'last', 'turn'))
if not last then
  local frozen = redis.call('HEXISTS', k_meta, 'frozen')
  if frozen == 1 then redis.call('HSET', k_meta, 'frozen_in', ARGV[2]) end
  return { frozen - 1, 0 }
end
if ARGV[3] == '1' and (turn or '0') ~= ARGV[2] then return { 0, 3 } end
if redis.call('EXISTS', k_taken) == 1 then return { 0, 1 } end
if redis.call('EXISTS', k_moving) == 1 then return { 0, 2 } end
redis.call('HSET', k_meta, 'frozen', last, 'frozen_in', ARGV[2], 'moved', ARGV[1])
redis.call('HDEL', k_meta, 'last')
redis.call('DEL', k_waits)
local prefix, no = string.match(k_meta, '^{(.*):(%d+)}:meta$')
redis.call('PUBLISH', prefix .. ':tube_changed', no)
return { 0, 0 }

-- script: unfreeze_tube
-- Undo the freeze of a shard by an interrupted move, unless it was frozen in this turn or later.
-- KEYS: meta
-- ARGV: turn
-- FLAGS: allow-oom
local frozen = redis.call('HMGET', k_meta, 'frozen', 'frozen_in')
if not frozen[1] or tonumber(frozen[2]) >= tonumber(ARGV[1]) then return 0 end
redis.call('HSET', k_meta, 'last', frozen[1])
return redis.call('HDEL', k_meta, 'frozen', 'frozen_in', 'moved')

-- script: erase_tube
-- Delete the tasks of a tube that was moved away, or whose import failed, with everything that depends on them. `erased` of
-- meta marks a frozen tube whose tasks were deleted.
-- WITH: contents
-- FLAGS: allow-oom
if redis.call('HEXISTS', k_meta, 'frozen') == 1 then redis.call('HSET', k_meta, 'erased', 1) end
unlink_contents(k_waits, k_outbox, k_inbox)
return 1

-- script: import
-- Store tasks, and what is stored besides them, under their own ids. Tasks that exist already are not changed. Tasks from another
-- store are counted. Those from the database of a pool are not, because open_index does that; if they were taken, they get
-- a session that has ended, so the next advance releases them.
-- KEYS: groups ends
-- ARGV: now, shape, limit, facts, or '' if it comes from the database, the id up to which all is imported, number of words for
--   what is stored besides tasks, name, value, ..., key, record, ...; names: `o` and key of an outcome, `x` and key of a task with
--   errors, `g`, `e` or `c` and number of a group: its record, end work and cancel work
-- Returns: now
-- WITH: now tube encode decode tasks micro_queues? groups write_groups outcomes new_record add_entries unleased?
local NOBODY = 281474976710655 -- the highest number that a session could have
local before, added, related, split, rebuilds = last, 0, false, 6 + ARGV[6], ARGV[4] == ''

local function load_outcome(key, stored)
  local address = struct.unpack('>Bc0', stored, 8 + string.byte(stored, 7))
  local newest = redis.call('HGET', k_addresses, address)
  redis.call('HSET', k_outcomes, key, stored)
  redis.call('ZADD', k_kept, (struct.unpack('>I6', stored)), 'o' .. key)
  if address ~= '' and (not newest or id_of(newest) < id_of(key)) then redis.call('HSET', k_addresses, address, key) end
end

local function load_group(name, stored)
  local state, _, _, _, _, over, place = struct.unpack('>c1c1I6I6I6I6', stored)
  local no, title = id_of(name), string.sub(stored, place)
  if over > 0 then redis.call('ZADD', k_kept, over, name) end
  if state == 'o' or state == 's' then redis.call('HSET', k_groups, 'n' .. title, no) end
  if no > tonumber(redis.call('HGET', k_groups, 'l' .. title) or 0) then redis.call('HSET', k_groups, 'l' .. title, no) end
end

for i = 7, split, 2 do
  local name, value = ARGV[i], ARGV[i + 1]
  local letter, key = string.sub(name, 1, 1), string.sub(name, 2)
  if letter == 'o' then
    load_outcome(key, value)
    related = true
  else
    redis.call('HSET', letter == 'x' and k_errors or k_groups, letter == 'x' and key or name, value)
  end
  if letter == 'g' then load_group(name, value) end
  if mark_changed and not rebuilds then mark_changed(name) end
end

-- Count a task that comes from another store.
local function count_in(key, rec)
  added = added + 1
  if mark_changed then mark_changed('t' .. key) end
  -- Such a task represents a ready one: see penstock.core.transfer.
  if rec.state == '~' and rec.at and rec.at <= rec.created then count('delay', -1) end
  local group = rec.group_no and group_of(rec.group_no)
  if group then group.total, group.left, touched[rec.group_no] = group.total + 1, group.left + 1, true end
  if rec.reply_to then redis.call('HSETNX', k_meta, 'posted', 0) end
  related = related or rec.address or rec.reply_to or rec.group_no
end

for i = split + 1, #ARGV, 2 do
  local key, rec = ARGV[i], decode(ARGV[i + 1])
  if not rec then
    redis.call('HSETNX', k_tasks, key, ARGV[i + 1]) -- the next check buries it
  elseif redis.call('HEXISTS', k_tasks, key) == 0 then
    if not rebuilds then
      count_in(key, rec)
    elseif rec.state == 'q' then
      rec.state = 'r'
    elseif rec.state == 't' and not delivered then
      rec.owner = NOBODY
      redis.call('ZADD', k_ends, 0, NOBODY)
    end
    if in_order then redis.call('HSETNX', k_meta, 'handed', id_of(key) - 1) end
    if rec.address and add_name then
      add_name(key, rec.address)
    elseif rec.address then
      redis.call('HSET', k_addresses, rec.address, key)
    end
    if rec.group_no then redis.call('ZADD', k_members, 0, key_of(rec.group_no) .. 'm' .. key) end
    fetched[key] = rec
    if update_micro_queue then update_micro_queue(key, rec) end
    save(key, rec)
    set_timer(key, nil, rec.at)
    enter(key, rec)
    last = math.max(last, id_of(key))
  end
end
if not rebuilds then
  if related and not delivered then redis.call('HSETNX', k_meta, 'facts', ARGV[4]) end
  last = math.max(last, tonumber(ARGV[5]))
  count('skipped', last - before - added)
end
commit()
return { now }
