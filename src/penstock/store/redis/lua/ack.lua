-- script: ack
-- The common case of settle: acks by one session of distinct tasks without relations, whose events nobody subscribed to.
-- Records are not decoded, only the bytes that matter are read (see record.lua): a quarter of the time of settle.
-- KEYS: tasks taken
-- ARGV: now, shape, limit, session in 6 bytes, for each task its key and the lease in 4 bytes (0: any)
-- Returns: now, number of tasks acked, {places of the others}; or -3 if a task has relations, and nothing was done
-- WITH: now tube
-- FLAGS: allow-oom
local owner, listed, sub = ARGV[4], ARGV[5], string.sub
local ANY, TIED = '\0\0\0\0', 16384

-- Where lease, deadline and owner begin in a taken task with these flags; false if it was never handed out. Each field
-- begins after those of the lower flags.
local function places_of(flags)
  local sizes, at, place = { 8, 8, 4, 14, 6, 6, 0, 6, 4, 6 }, {}, 10
  for i, size in ipairs(sizes) do
    local flag = 2 ^ (i - 1)
    if bit.band(flags, flag) ~= 0 then
      at[i] = place
      place = place + size
    end
  end
  return at[4] and at[10] and { at[4] + 4, bit.band(flags, 64) ~= 0 and at[5] or at[6], at[10] }
end

local keys, leases = {}, {}
for i = 1, #listed, 10 do
  keys[#keys + 1] = sub(listed, i, i + 5)
  leases[#leases + 1] = sub(listed, i + 6, i + 9)
end

local known, gone, timed, missed = {}, {}, {}, {}
for first = 1, #keys, 1000 do
  local values = redis.call('HMGET', k_tasks, unpack(keys, first, math.min(first + 999, #keys)))
  for i, value in ipairs(values) do
    local place = first + i - 1
    local state, high, low = string.byte(value or '', 1, 3)
    local flags = low and high * 256 + low or 0
    if flags >= TIED then return { -3 } end
    local at = known[flags]
    if at == nil then
      at = places_of(flags)
      known[flags] = at
    end
    local held = at and (state == 116 or state == 112) and sub(value, at[3], at[3] + 5) == owner -- t or p
    held = held and (leases[place] == ANY or sub(value, at[1], at[1] + 3) == leases[place])
    if held and (not at[2] or struct.unpack('>I6', value, at[2]) > now) then
      gone[#gone + 1] = keys[place]
      if at[2] then timed[#timed + 1] = keys[place] end
    else
      missed[#missed + 1] = place
    end
  end
end

local function take_out(command, index, names)
  for i = 1, #names, 1000 do redis.call(command, index, unpack(names, i, math.min(i + 999, #names))) end
end
take_out('HDEL', k_tasks, gone)
take_out('ZREM', k_taken, gone)
take_out('ZREM', k_due, timed)
removed = #gone
count('taken', -removed)
count('ack', removed)
finish()
return { now, removed, missed }
