-- script: ack
-- The common case of an ack: by one session, of distinct tasks without address, reply tube or group, whose events have no
-- subscriber. Reads the bytes that matter instead of decoding records (see record.lua): takes a quarter of the time of apply.
-- ARGV: now, shape, limit, keys of the tasks, lease in 8 bytes (0: any) and session in 6 bytes for each task or once for
--   all, result of each task ('': none), ..., or no results at all
-- Returns: now, readied; then, unless all were acked and no outcome is kept: {places of tasks that do not exist}, {places of
--   tasks that are left to the engine: not held, with errors, with reply tubes, the last ones of their groups; for `ack` also
--   all with an address or a group}, {places of tasks whose outcome is kept} or 1 for all, 0 unless tasks of the tube cannot be read
-- WITH: now tube encode? decode? tasks? micro_queues? ack_tasks
-- FLAGS: allow-oom

-- script: ack_related
-- As ack, also for tasks with addresses and for tasks in groups.
-- WITH: now tube encode decode? tasks? micro_queues? groups write_groups outcomes ack_relations ack_tasks
-- FLAGS: allow-oom

-- part: ack_relations
-- KEYS: members
local over = meta[5] and now + struct.unpack('>I6', meta[5])
local lead, members = over and struct.pack('>I6', over) .. '\4done', {}
local kept, byte, sub, results = 0, string.byte, string.sub, ARGV
acks_kept = {}

-- The group of a task, by the text that names it, which is the same for all of its tasks: number, group, lead of its members.
local last_text, last_no, last_group, last_lead = '', nil, nil, nil

-- Count a task down in its group, whose text begins at this position. Returns false if the engine must ack the task, because
-- it is the last of its group, or because it has a reply tube; '<' is no tube: see KEEP_EXPIRY in core/ending.py.
local function leave_group(key, value, at)
  if last_no == nil or sub(value, at, at + #last_text - 1) ~= last_text then
    local no, _, reply_to, after = struct.unpack('>I6Bc0Bc0', value, at)
    if reply_to ~= '' and reply_to ~= '<' then return false end
    last_text, last_no, last_group, last_lead = sub(value, at, after - 1), no, no > 0 and group_of(no), key_of(no) .. 'm'
  end
  if last_no == 0 then return true end
  if not (last_group and last_group.state == 's' and last_group.left > 1) then return false end
  last_group.left, touched[last_no] = last_group.left - 1, true
  members[#members + 1] = last_lead .. key
  return true
end

-- Let a held task leave, and keep its outcome if it has an address: as keep_outcome, but from stored bytes. Returns false if
-- it must stay.
ack_related = function(place, key, value, flags)
  if not lead then return false end
  local at, address = texts_place(flags), nil
  if flags % 32 >= 16 then at = at + 1 + byte(value, at) end
  if flags % 64 >= 32 then
    address = sub(value, at, at + byte(value, at))
    at = at + #address
    if byte(address, 2) == 0 then address = with_length(full_name(sub(address, 2), (struct.unpack('>I6', value, 3)))) end
  end
  if flags % 128 >= 64 and not leave_group(key, value, at) then return false end
  if address then
    kept = kept + 1
    acks_kept[kept], outcome_keys[kept] = place, key
    new_outcomes[2 * kept - 1], new_outcomes[2 * kept] = key, lead .. address .. '\0\0\0\0' .. (results[5 + place] or '')
  end
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
if mark_changed then
  for _, key in ipairs(gone) do mark_changed('t' .. key) end
end
removed = #gone
count('taken', -removed)
count('ack', removed)
if save_acked then save_acked() end
if save_micro_queues then save_micro_queues() end
finish()
local kept, broken = acks_kept or {}, #(log or {})
if #missed + #tied + #kept + broken == 0 then return { now, readied } end
return { now, readied, missed, tied, #kept == #keys and 1 or kept, broken }

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
return { now, readied, {}, {}, {}, #log }
