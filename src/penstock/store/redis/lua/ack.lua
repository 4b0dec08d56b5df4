-- script: ack
-- The common case of an ack: by one session, of distinct tasks without address, reply tube or group, whose events have no
-- subscriber. Reads the bytes that matter instead of decoding records (see record.lua): takes a quarter of the time of apply.
-- ARGV: now, shape, limit, keys of the tasks, lease in 8 bytes (0: any) and session in 6 bytes for each task or once for
--   all, result of each task ('': none), ..., or no results at all
-- Returns: now, readied; then, unless all were acked and no outcome is kept: {places of tasks that do not exist}, {places of
--   tasks that are left to the engine: not held, with errors, with reply tubes, the last ones of their groups; for `ack` also
--   all with an address or a group}, {places of tasks whose outcome is kept} or 1 for all, 0 unless unreadable tasks were buried
-- WITH: now tube with_micro_queues? ack_tasks
-- FLAGS: allow-oom

-- script: ack_related
-- As ack, also for tasks with addresses and for tasks in groups.
-- WITH: now tube encode with_micro_queues? groups write_groups outcomes ack_relations ack_tasks
-- FLAGS: allow-oom

-- part: ack_relations
-- KEYS: members
local over = meta[5] and now + struct.unpack('>I6', meta[5])
local lead, members = over and struct.pack('>I6', over) .. '\4done', {}
acks_kept = {}

-- Keep the outcome of a task with an address: as keep_outcome, but from stored bytes.
local function keep_acked(place, key, value, flags)
  local at, n = texts_place(flags), #acks_kept
  if flags % 32 >= 16 then at = at + 1 + string.byte(value, at) end
  local length, first = string.byte(value, at, at + 1)
  local address = string.sub(value, at, at + length)
  if first == 0 then address = with_length(full_name(string.sub(address, 2), (struct.unpack('>I6', value, 3)))) end
  acks_kept[n + 1] = place
  new_outcomes[2 * n + 1], new_outcomes[2 * n + 2] = key, lead .. address .. '\0\0\0\0' .. (ARGV[5 + place] or '')
end

-- The number of a task's group, 0 for none, or nil if it has a reply tube. '<' is no tube: see KEEP_EXPIRY in core/ending.py.
local function group_in(value, flags)
  local at, text = texts_place(flags), nil
  if flags % 32 >= 16 then text, at = text_at(value, at) end
  if flags % 64 >= 32 then text, at = text_at(value, at) end
  local no, _, reply_to = struct.unpack('>I6Bc0Bc0', value, at)
  return (reply_to == '' or reply_to == '<') and no or nil
end

-- Whether a held task may leave: not if it has a reply tube or is the last of its group, which the engine ends.
ack_related = function(place, key, value, flags)
  local no = 0
  if flags % 128 >= 64 then no = group_in(value, flags) end
  if not (lead and no) then return false end
  if no > 0 then
    local group = group_of(no)
    if not (group and group.state == 's' and group.left > 1) then return false end
    group.left, touched[no] = group.left - 1, true
    members[#members + 1] = key_of(no) .. 'm' .. key
  end
  if flags % 64 >= 32 then keep_acked(place, key, value, flags) end
  return true
end

save_acked = function()
  call_with('ZREM', k_members, members)
  save_outcomes()
  save_groups()
end

-- part: ack_tasks
-- KEYS: tasks taken
local keys, gone, missed, tied, timed = {}, {}, {}, {}, false
local sub, byte, all = string.sub, string.byte, #ARGV[5] == 14 and ARGV[5]
for i = 1, #ARGV[4], 6 do keys[#keys + 1] = sub(ARGV[4], i, i + 5) end
local values = read_many(k_tasks, keys)
local micro_queues_of = ack_taken and load_micro_queues(values)
local verdicts = {} -- by the bytes of the hand-out, which are usually the same for all tasks of one take

-- Whether a task is held with that lease by that session, and has no errors.
local function is_held(handed, wanted)
  if #handed < 30 or byte(handed) > 127 then return false end
  if sub(handed, 11, 24) ~= wanted and (sub(wanted, 1, 8) ~= '\0\0\0\0\0\0\0\0' or sub(handed, 19, 24) ~= sub(wanted, 9)) then
    return false
  end
  local deadline = struct.unpack('>I6', handed, 25)
  timed = timed or deadline > 0
  return deadline == 0 or deadline > now
end

for place, key in ipairs(keys) do
  local value = values[place]
  local state, flags = byte(value or '', 1, 2)
  local handed = value and sub(value, 9, 38)
  local held = verdicts[handed]
  if value and (held == nil or not all) then
    held = is_held(handed, all or sub(ARGV[5], 14 * place - 13, 14 * place))
    verdicts[handed] = held
  end
  if not value then
    missed[#missed + 1] = place
  elseif state == 116 and held and flags % 2 == 1 -- t
    and (flags % 128 < 32 or (ack_related and ack_related(place, key, value, flags))) then
    gone[#gone + 1] = key
    if ack_taken then ack_taken(micro_queues_of[place]) end
  else
    tied[#tied + 1] = place
  end
end

call_with('HDEL', k_tasks, gone)
call_with('ZREM', k_taken, gone)
if timed then call_with('ZREM', k_due, gone) end
removed = #gone
count('taken', -removed)
count('ack', removed)
if save_acked then save_acked() end
if save_micro_queues then save_micro_queues() end
finish()
local kept, buried = acks_kept or {}, ack_taken and #log or 0
if #missed + #tied + #kept + buried == 0 then return { now, readied } end
return { now, readied, missed, tied, #kept == #keys and 1 or kept, buried }

-- script: delete
-- Delete a task that has no address, reply tube or group and is not past its ttl, in any state.
-- ARGV: now, shape, limit, key
-- Returns: as ack
-- WITH: now tube encode decode tasks micro_queues?
-- FLAGS: allow-oom
local value = redis.call('HGET', k_tasks, ARGV[4])
if not value then return { now, 0, { 1 }, {}, {}, 0 } end
local rec = (string.byte(value, 2) or 32) % 128 < 32 and decode(value)
if not rec or expired(rec) then return { now, 0, {}, { 1 }, {}, 0 } end
change(ARGV[4], rec, { state = '-', events = 'delete', attempts = rec.attempts })
commit()
if #log == 0 then return { now, readied } end
return { now, readied, {}, {}, {}, #log }
