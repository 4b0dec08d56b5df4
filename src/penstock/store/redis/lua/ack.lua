-- script: ack
-- The common case of an ack: by one session, of distinct tasks without reply tubes and groups, whose events nobody subscribed
-- to. Records are not decoded, only the bytes that matter are read (see record.lua): a quarter of the time of apply.
-- KEYS: tasks taken outcomes kept
-- ARGV: now, shape, limit, session in 6 bytes, for each task its key and the lease in 8 bytes (0: any), result, ...: of
--   each task, '' for none; or no results at all
-- Returns: now, readied, {places of those that cannot be}, {places of those that are left to apply: with
--   reply tubes, groups or errors, or not held and maybe unreadable}, {places of those whose outcome is kept}, 0 unless tasks that
--   could not be read were buried
-- WITH: now tube layout lanes? outcomes?
-- FLAGS: allow-oom
local owner, listed, sub, byte = ARGV[4], ARGV[5], string.sub, string.byte
local ANY, HANDED, ADDRESSED, TIED = string.rep('\0', 8), 8 + 512, 16384, 32768

local keys, leases = {}, {}
for i = 1, #listed, 14 do
  keys[#keys + 1] = sub(listed, i, i + 5)
  leases[#leases + 1] = sub(listed, i + 6, i + 13)
end

local gone, timed, missed, tied, kept = {}, {}, {}, {}, {}
local outcomes, over = {}, meta[5] and now + cmsgpack.unpack(meta[5])[1]
local lead = over and struct.pack('>I6', over) .. '\4done'

-- As keep_outcome does, but many by one command.
local function keep(place, value, flags)
  local start, n = text_place(value, flags, ADDRESSED), #kept
  kept[n + 1] = place
  outcomes[2 * n + 1] = keys[place]
  outcomes[2 * n + 2] = lead .. sub(value, start, start + byte(value, start)) .. '\0\0\0\0' .. (ARGV[5 + place] or '')
end

if ack_taken then removals, additions = {}, {} end
local seen, lease_at, owner_at, deadline
for first = 1, #keys, 1000 do
  local values = redis.call('HMGET', k_tasks, unpack(keys, first, math.min(first + 999, #keys)))
  for i, value in ipairs(values) do
    local place = first + i - 1
    local state, high, low = byte(value or '', 1, 3)
    local flags = low and high * 256 + low or 0
    if flags ~= seen then -- mostly all have the same
      local at = layout_of(flags)
      seen, lease_at, owner_at = flags, at[8] + 4, band(flags, HANDED) == HANDED and at[512]
      deadline = band(flags, 64) ~= 0 and at[16] or band(flags, 32) ~= 0 and at[32]
    end
    local held = owner_at and (state == 116 or state == 112) and sub(value, owner_at, owner_at + 5) == owner -- t or p
      and (leases[place] == ANY or sub(value, lease_at, lease_at + 7) == leases[place])
    if flags >= TIED or (flags >= ADDRESSED and not held) or (held and byte(value, lease_at - 4) > 127) then -- has errors
      tied[#tied + 1] = place
    elseif not held or (deadline and struct.unpack('>I6', value, deadline) <= now) then
      missed[#missed + 1] = place
    else
      gone[#gone + 1] = keys[place]
      if deadline then timed[#timed + 1] = keys[place] end
      if flags >= ADDRESSED then keep(place, value, flags) end
      if ack_taken then ack_taken(value, flags) end
    end
  end
end

if ack_taken then flush_gathered() end
call_with('HDEL', k_tasks, gone)
call_with('ZREM', k_taken, gone)
call_with('ZREM', k_due, timed)
if #kept > 0 then
  forget_expired(2 * #kept)
  call_with('HSET', k_outcomes, outcomes)
  for first = 1, #kept, 100 do
    local some = { 'o' }
    for i = first, math.min(first + 99, #kept) do some[#some + 1] = keys[kept[i]] end
    redis.call('ZADD', k_kept, over, table.concat(some))
  end
  awaited = redis.call('HDEL', k_meta, 'awaited') == 1
end
removed = #gone
count('taken', -removed)
count('ack', removed)
if ack_taken then save_lanes() end
finish()
return { now, readied, missed, tied, kept, ack_taken and #log or 0 }
