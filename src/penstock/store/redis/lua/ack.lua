-- script: ack
-- The common case of an ack: by one session, of distinct tasks without address, reply tube or group, whose events have no
-- subscriber. Reads the bytes that matter instead of decoding records (see record.lua): takes a quarter of the time of apply.
-- ARGV: now, shape, limit, keys of the tasks, lease in 8 bytes (0: any) and session in 6 bytes for each task or once for all,
--   result of each task ('': none), ..., or no results at all
-- Returns: now, readied, {places of tasks that do not exist}, {places of tasks that are left to the engine: not held, with
--   errors, with reply tubes, the last ones of their groups; for `ack` also all with an address or a group}, {places of tasks
--   whose outcome is kept} or 1 for all, 0 unless unreadable tasks were buried
-- WITH: now tube encode with_micro_queues? ack_tasks
-- FLAGS: allow-oom

-- script: ack_related
-- As ack, also for tasks with addresses and for tasks in groups.
-- WITH: now tube encode with_micro_queues? groups write_groups outcomes ack_tasks
-- FLAGS: allow-oom

-- part: ack_tasks
-- KEYS: tasks taken members
local keys, gone, timed, missed, tied, kept = {}, {}, {}, {}, {}, {}
local of_group, related = {}, save_outcomes and meta[5]
local over = related and now + struct.unpack('>I6', related)
local sub, byte, lead = string.sub, string.byte, over and struct.pack('>I6', over) .. '\4done'
for i = 1, #ARGV[4], 6 do keys[#keys + 1] = sub(ARGV[4], i, i + 5) end
local values = read_many(k_tasks, keys)
local micro_queues_of = ack_taken and load_micro_queues(values)

-- Remove a task, and keep its outcome if it has an address: as keep_outcome, but with one command for many.
local function remove(place, value, flags)
  gone[#gone + 1] = keys[place]
  if struct.unpack('>I6', value, 33) > 0 then timed[#timed + 1] = keys[place] end
  if ack_taken then ack_taken(micro_queues_of[place]) end
  if band(flags, 32) ~= 0 then
    local at = texts_place(flags)
    if band(flags, 16) ~= 0 then at = at + 1 + byte(value, at) end
    local n = #kept
    kept[n + 1] = place
    new_outcomes[2 * n + 1] = keys[place]
    local address = sub(value, at, at + byte(value, at))
    if byte(address, 2) == 0 then address = with_length(full_name(sub(address, 2), (struct.unpack('>I6', value, 3)))) end
    new_outcomes[2 * n + 2] = lead .. address .. '\0\0\0\0' .. (ARGV[5 + place] or '')
  end
end

-- The number of a task's group, 0 for none, or nil if it has a reply tube. '<' is no tube: see KEEP_EXPIRY in core/ending.py.
local function group_in(value, flags)
  local at, text = texts_place(flags), nil
  if band(flags, 16) ~= 0 then text, at = text_at(value, at) end
  if band(flags, 32) ~= 0 then text, at = text_at(value, at) end
  local no, _, reply_to = struct.unpack('>I6Bc0Bc0', value, at)
  return (reply_to == '' or reply_to == '<') and no or nil
end

-- Whether a task is held with that lease by that session, and has no errors.
local function is_held(value, wanted)
  if byte(value, 1) ~= 116 or #value < 38 or byte(value, 2) % 2 == 0 or byte(value, 9) > 127 then return false end -- t
  if string.find(value, wanted, 19, true) ~= 19
    and (sub(wanted, 1, 8) ~= '\0\0\0\0\0\0\0\0' or sub(value, 27, 32) ~= sub(wanted, 9)) then
    return false
  end
  local deadline = struct.unpack('>I6', value, 33)
  return deadline == 0 or deadline > now
end

local all = #ARGV[5] == 14 and ARGV[5]
for place, value in ipairs(values) do
  if not value then
    missed[#missed + 1] = place
  elseif not is_held(value, all or sub(ARGV[5], 14 * place - 13, 14 * place)) then
    tied[#tied + 1] = place
  elseif band(byte(value, 2), related and 64 or 96) == 0 then
    remove(place, value, byte(value, 2))
  else
    local group = related and group_in(value, byte(value, 2))
    if group == 0 then
      remove(place, value, byte(value, 2))
    elseif group then
      of_group[group] = of_group[group] or {}
      table.insert(of_group[group], place)
    else
      tied[#tied + 1] = place
    end
  end
end

local members = {}
for no, places in pairs(of_group) do
  local group = group_of(no)
  local started = group and group.state == 's'
  for _, place in ipairs(places) do
    if started and group.left > 1 then -- the last task would end the group
      group.left, touched[no] = group.left - 1, true
      members[#members + 1] = key_of(no) .. 'm' .. keys[place]
      remove(place, values[place], byte(values[place], 2))
    else
      tied[#tied + 1] = place
    end
  end
end
table.sort(tied)

call_with('HDEL', k_tasks, gone)
call_with('ZREM', k_taken, gone)
call_with('ZREM', k_due, timed)
if #members > 0 then call_with('ZREM', k_members, members) end
if #kept > 0 then save_outcomes() end
removed = #gone
count('taken', -removed)
count('ack', removed)
if save_groups then save_groups() end
if save_micro_queues then save_micro_queues() end
finish()
return { now, readied, missed, tied, #kept == #keys and 1 or kept, ack_taken and #log or 0 }
