-- script: put_related
-- Store tasks with addresses, reply tubes or groups in order, all or none. If an address is in use, give the existing task
-- new content, or leave it as it is. The id of an element of a round tube is its address.
-- ARGV: now, shape, limit, capacity or '', facts, entries: msgpack [[spec, address, on_duplicate, reply_to, group,
--   number of the only group it may join], ...], data, ...
-- Returns: now, readied, removed, log, follow_ups, {place in the log of each entry}; or now, 0, -1 and why nothing was
--   stored: 'full', total; 'duplicate', place of the entry, state of the existing task; 'ended', place of the
--   entry
-- WITH: now tube encode layout decode tasks micro_queues? lifecycle relations unleased? count_tasks
local entries = cmsgpack.unpack(ARGV[6])
-- A place is a number in `fresh`, or the key of an existing task.
local fresh, places, held, gone, there, replaced, renewing = {}, {}, {}, {}, {}, {}, {}

local RENEWS = { replace = true, refresh = true }

local function task_with_address(address)
  local key = redis.call('HGET', k_addresses, address)
  local rec = key and fetch(key)
  if rec and rec.address ~= address then return nil end -- it could not be read, and has lost its address
  if rec and (cancelled(rec) or expired(rec)) then
    gone[#gone + 1] = id_of(key) -- it makes room for the new task
  elseif rec then
    there[#there + 1] = key
    return key
  end
end

-- What a replacing put sets: ranks, pri, ttl and delay.
local function renewed(spec, by)
  for _, i in ipairs({ 1, 2, 3, 4, 5, 6, 7, 9, 11 }) do spec[i] = by[i] end
end

for i, entry in ipairs(entries) do
  local address = entry[2]
  local place = address and (held[address] or task_with_address(address))
  if not place then
    fresh[#fresh + 1] = { entry = entry, payload = ARGV[6 + i], at = i }
    place = #fresh
  elseif RENEWS[entry[3]] and type(place) == 'number' then
    if entry[3] == 'replace' then renewed(fresh[place].entry[1], entry[1]) end
    fresh[place].payload = ARGV[6 + i]
  elseif RENEWS[entry[3]] then
    local state = fetch(place).state
    if state == 't' or state == '!' then return { now, 0, -1, 'duplicate', i, state } end
    if not replaced[place] then renewing[#renewing + 1] = place end
    replaced[place] = i
  elseif entry[3] ~= 'ignore' then
    return { now, 0, -1, 'duplicate', i, '' }
  end
  if address then held[address] = place end
  places[i] = place
end

-- A task that makes room may be the last of its group, which then ends.
local leaving = {}
table.sort(gone)
for _, id in ipairs(gone) do
  local no = fetch(key_of(id)).group_no
  if no then leaving[no] = (leaving[no] or 0) + 1 end
end
for _, new in ipairs(fresh) do
  local no = new.entry[6]
  local group = no and group_of(no)
  if no and not (group and live(group) and (group.state == 'o' or group.left > (leaving[no] or 0))) then
    return { now, 0, -1, 'ended', new.at }
  end
end
if #fresh > 0 and ARGV[4] ~= '' and count_tasks() + #fresh - #gone > tonumber(ARGV[4]) then
  redis.call('HSET', k_meta, 'full', '1')
  return { now, 0, -1, 'full', count_tasks() }
end

if not meta[5] then
  meta[5] = ARGV[5]
  redis.call('HSET', k_meta, 'facts', meta[5])
end
for _, id in ipairs(gone) do
  local rec = fetch(key_of(id))
  change(key_of(id), rec, cancelled(rec) and cancelled_with_group(rec) or deadline_passed(rec))
end

local function store(new)
  local _, address, _, reply_to, name, no = unpack(new.entry, 1, 6)
  local group
  if no then group = group_of(no) elseif name then group, no = open_group(name) end
  last = last + 1
  local rec = new_record(new.entry[1], last)
  rec.payload, rec.address, rec.reply_to, rec.group, rec.group_no = new.payload, address, reply_to, name, no
  if group and group.state == 'o' then rec.state = 'g' end
  if reply_to then redis.call('HSETNX', k_meta, 'posted', 0) end
  if address then
    supersede(address)
    add_to('HSET', k_addresses, address, key_of(last))
  end
  if group then
    group.total, group.left, touched[no] = group.total + 1, group.left + 1, true
    add_to('ZADD', k_members, 0, key_of(no) .. 'm' .. key_of(last))
  end
  return add(rec)
end

-- Set new data; for `replace` also delay, pri and ttl, with the rank that these give. Everything else stays.
local function replace(key, rec, entry, payload)
  if mark_changed then mark_changed('t' .. key) end
  if entry[3] == 'refresh' then
    rec.payload = payload
    return save(key, rec)
  end
  local before, timer, new = rec.state, rec.at, new_record(entry[1], id_of(key))
  local letter = before == 'r' and 'h' or before == 'q' and 'w'
  local old_member = letter and queue_member and queue_member(key, rec, letter)
  leave(key, rec)
  if before == 'r' then readied = readied - 1 end
  for _, field in ipairs({ 'rank1', 'rank2', 'pri', 'created', 'expires', 'at' }) do rec[field] = new[field] end
  rec.state, rec.payload = before == 'g' and 'g' or new.state, payload
  if update_lane then update_lane(key, rec, before, false, old_member) end
  save(key, rec)
  set_timer(key, timer, rec.at)
  enter(key, rec)
end

local noted = {}
additions = {} -- written by few commands
for i, new in ipairs(fresh) do new.key = store(new) end
flush_gathered()
for i, new in ipairs(fresh) do noted[i] = log_change('put', new.key, fetched[new.key]) end
for _, key in ipairs(renewing) do
  local i = replaced[key]
  replace(key, fetch(key), entries[i], ARGV[6 + i])
end
for _, key in ipairs(there) do noted[key] = log_change(replaced[key] and 'put' or '', key, fetch(key)) end
for i, place in ipairs(places) do places[i] = noted[place] end
commit()
return { now, readied, removed, log, follow_ups, places }
