-- script: ack
-- The common case of an ack: by one session, of distinct tasks without reply tubes and groups, whose events nobody subscribed
-- to. Records are not decoded, only the bytes that matter are read (see record.lua): a quarter of the time of apply.
-- KEYS: tasks taken outcomes kept
-- ARGV: now, shape, limit, session in 6 bytes, for each task its key and the lease in 4 bytes (0: any), result, ...: of
--   each task, '' for none; or no results at all
-- Returns: now, how many were acked, {places of those that cannot be}, {places of those that are left to apply: with
--   reply tubes or groups, or not held and maybe unreadable}, {places of those whose outcome is kept}
-- WITH: now tube outcomes?
-- FLAGS: allow-oom
local owner, listed, sub, byte = ARGV[4], ARGV[5], string.sub, string.byte
local ANY, ADDRESSED, TIED = '\0\0\0\0', 16384, 32768

-- Where lease, deadline and owner begin in a taken task with these flags, and where its texts do, with the widths of their
-- lengths up to the address; false if it was never handed out. Each field begins after those of the lower flags.
local function places_of(flags)
  local sizes, at, place, widths = { 8, 8, 4, 14, 6, 6, 0, 6, 4, 6 }, {}, 10, {}
  for i, size in ipairs(sizes) do
    local flag = 2 ^ (i - 1)
    if bit.band(flags, flag) ~= 0 then
      at[i] = place
      place = place + size
    end
  end
  for i, width in ipairs({ 1, 2, 2 }) do
    if bit.band(flags, 2 ^ (i + 9)) ~= 0 then widths[#widths + 1] = width end
  end
  local deadline = bit.band(flags, 64) ~= 0 and at[5] or at[6]
  return at[4] and at[10] and { at[4] + 4, deadline, at[10], place, widths }
end

local keys, leases = {}, {}
for i = 1, #listed, 10 do
  keys[#keys + 1] = sub(listed, i, i + 5)
  leases[#leases + 1] = sub(listed, i + 6, i + 9)
end

local known, gone, timed, missed, tied, kept = {}, {}, {}, {}, {}, {}
-- A string: a number would be converted anew for each task.
local outcomes, ends, over = {}, {}, meta[5] and string.format('%.0f', now + cmsgpack.unpack(meta[5])[1])

-- As keep_outcome does, but many by one command.
local function keep(place, value, at)
  local start, key, n, widths = at[4], keys[place], #kept, at[5]
  for i = 1, #widths do
    local high, low = byte(value, start, start + 1)
    start = start + widths[i] + (widths[i] == 1 and high or high * 256 + low)
  end
  local stop = start + byte(value, start)
  kept[n + 1] = place
  outcomes[2 * n + 1], ends[2 * n + 1] = key, over
  outcomes[2 * n + 2] = '\4done' .. sub(value, start, stop) .. '\0\0\0\0' .. (ARGV[5 + place] or '')
  ends[2 * n + 2] = 'o' .. key .. sub(value, start + 1, stop) -- kept_name
end

for first = 1, #keys, 1000 do
  local values = redis.call('HMGET', k_tasks, unpack(keys, first, math.min(first + 999, #keys)))
  for i, value in ipairs(values) do
    local place = first + i - 1
    local state, high, low = byte(value or '', 1, 3)
    local flags = low and high * 256 + low or 0
    local at = known[flags]
    if at == nil then
      at = places_of(flags)
      known[flags] = at
    end
    local held = at and (state == 116 or state == 112) and sub(value, at[3], at[3] + 5) == owner -- t or p
    held = held and (leases[place] == ANY or sub(value, at[1], at[1] + 3) == leases[place])
    if flags >= TIED or (flags >= ADDRESSED and not held) then
      tied[#tied + 1] = place
    elseif not held or (at[2] and struct.unpack('>I6', value, at[2]) <= now) then
      missed[#missed + 1] = place
    else
      gone[#gone + 1] = keys[place]
      if at[2] then timed[#timed + 1] = keys[place] end
      if flags >= ADDRESSED then keep(place, value, at) end
    end
  end
end

local function in_parts(command, key, words)
  for i = 1, #words, 1000 do redis.call(command, key, unpack(words, i, math.min(i + 999, #words))) end
end
in_parts('HDEL', k_tasks, gone)
in_parts('ZREM', k_taken, gone)
in_parts('ZREM', k_due, timed)
if #kept > 0 then
  forget_expired(2 * #kept)
  in_parts('HSET', k_outcomes, outcomes)
  in_parts('ZADD', k_kept, ends)
  awaited = redis.call('HDEL', k_meta, 'awaited') == 1
end
removed = #gone
count('taken', -removed)
count('ack', removed)
finish()
return { now, removed, missed, tied, kept }
