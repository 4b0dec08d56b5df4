-- Tasks as they are stored. penstock.store.redis.encoding documents the layout and reads it too.

-- part: encode
-- A task's field in the hash of tasks and its member in indexes: six bytes that sort like its id.
local function key_of(id) return struct.pack('>I6', id) end

local function id_of(key) return (struct.unpack('>I6', key, #key - 5)) end

local function key_in(member) return string.sub(member, -6) end

-- A text of up to 255 bytes, preceded by its length.
local function with_length(text) return string.char(#text) .. text end

-- The address of a message begins with its time and a hyphen. A zero byte replaces both.
local function short_name(address, created)
  local lead = string.format('%.0f-', created)
  return string.sub(address, 1, #lead) == lead and '\0' .. string.sub(address, #lead + 1) or address
end

local function full_name(address, created)
  return string.byte(address) == 0 and string.format('%.0f-', created) .. string.sub(address, 2) or address
end

-- The flags and bytes of the numbers between a task's hand-out and its texts.
local function pack_numbers(rec)
  local flags, packed = 0, ''
  if rec.expires or rec.ttr then
    flags, packed = 2, struct.pack('>I6I6', rec.expires or 0, rec.ttr or 0)
  end
  if rec.at and rec.at ~= rec.expires and rec.state ~= 't' then
    flags, packed = flags + 4, packed .. struct.pack('>I6', rec.at)
  end
  if rec.rank1 ~= 0 or rec.rank2 ~= 0 or rec.pri ~= 0 then
    flags, packed = flags + 8, packed .. struct.pack('>ddI4', rec.rank1, rec.rank2, rec.pri)
  end
  return flags, packed
end

local function encode(rec)
  local flags, numbers = pack_numbers(rec)
  local taken, texts, reason, extra = '', '', rec.reason or '', rec.extra or ''
  if rec.taken then
    flags = flags + 1
    taken = struct.pack('>I4I6I8I6I6', rec.attempts + (rec.failed and 2147483648 or 0), rec.taken, rec.lease,
      rec.owner or 0, rec.state == 't' and rec.at or 0)
  end
  if rec.utube then
    flags, texts = flags + 16, with_length(rec.utube)
  end
  if rec.address then
    flags, texts = flags + 32, texts .. with_length(in_order and short_name(rec.address, rec.created) or rec.address)
  end
  if rec.reply_to or rec.group_no then
    flags, texts = flags + 64, texts .. key_of(rec.group_no or 0) .. with_length(rec.group or '')
      .. with_length(rec.reply_to or '')
  end
  local progress = rec.state == 't' and rec.progress or math.huge
  if progress ~= math.huge or reason ~= '' or extra ~= '' then
    flags, texts = flags + 128, texts .. struct.pack('>dHc0Hc0', progress, #reason, reason, #extra, extra)
  end
  return rec.state .. string.char(flags) .. key_of(rec.created) .. taken .. numbers .. texts .. rec.payload
end

-- The position of the texts in a task with these flags.
local texts_places = {}

local function texts_place(flags)
  local place = texts_places[flags]
  if not place then
    place = 9 + flags % 2 * 30 + (flags % 4 - flags % 2) * 6 + (flags % 8 - flags % 4) * 1.5 + (flags % 16 - flags % 8) * 2.5
    texts_places[flags] = place
  end
  return place
end

-- The text whose length is at this position, and the position after it.
local function text_at(value, place)
  local last = place + (string.byte(value, place) or 0)
  return string.sub(value, place + 1, last), last + 1
end

-- The number of the group of a stored task; nil, or 0 if it has a reply tube, if it has none.
local function group_in(value)
  local flags = string.byte(value, 2) or 0
  if flags % 128 < 64 then return nil end
  local place = texts_place(flags)
  if flags % 32 >= 16 then place = place + 1 + (string.byte(value, place) or 0) end
  if flags % 64 >= 32 then place = place + 1 + (string.byte(value, place) or 0) end
  return #value >= place + 5 and struct.unpack('>I6', value, place) or nil
end

-- Eight bytes that sort like the number.
local function sortable(number)
  if number == 0 then return '\128\0\0\0\0\0\0\0' end
  local bytes = struct.pack('>d', number)
  local first = string.byte(bytes)
  if first < 128 then return string.char(first + 128) .. string.sub(bytes, 2) end
  return (string.gsub(bytes, '.', function(byte) return string.char(255 - string.byte(byte)) end))
end

-- part: decode
-- The value, or nil for 0 and '', which mean that a task does not have it.
local function given(value)
  if value ~= 0 and value ~= '' then return value end
end

local function read(value)
  local rec, flags, place = { rank1 = 0, rank2 = 0, pri = 0, attempts = 0, lease = 0 }, nil, nil
  rec.state, flags, rec.created, place = struct.unpack('>c1BI6', value)
  if band(flags, 1) ~= 0 then
    rec.attempts, rec.taken, rec.lease, rec.owner, rec.at, place = struct.unpack('>I4I6I8I6I6', value, place)
    if rec.attempts >= 2147483648 then
      rec.attempts, rec.failed = rec.attempts - 2147483648, true
    end
    rec.owner, rec.at = given(rec.owner), given(rec.at)
  end
  if band(flags, 2) ~= 0 then
    rec.expires, rec.ttr, place = struct.unpack('>I6I6', value, place)
    rec.expires, rec.ttr = given(rec.expires), given(rec.ttr)
  end
  if rec.state ~= 't' then rec.at = rec.expires end
  if band(flags, 4) ~= 0 then rec.at, place = struct.unpack('>I6', value, place) end
  if band(flags, 8) ~= 0 then rec.rank1, rec.rank2, rec.pri, place = struct.unpack('>ddI4', value, place) end
  if band(flags, 16) ~= 0 then rec.utube, place = struct.unpack('>Bc0', value, place) end
  if band(flags, 32) ~= 0 then
    rec.address, place = struct.unpack('>Bc0', value, place)
    rec.address = full_name(rec.address, rec.created)
  end
  if band(flags, 64) ~= 0 then
    rec.group_no, rec.group, rec.reply_to, place = struct.unpack('>I6Bc0Bc0', value, place)
    rec.group_no, rec.group, rec.reply_to = given(rec.group_no), given(rec.group), given(rec.reply_to)
  end
  if band(flags, 128) ~= 0 then
    rec.progress, rec.reason, rec.extra, place = struct.unpack('>dHc0Hc0', value, place)
    rec.reason, rec.extra = given(rec.reason), given(rec.extra)
    if rec.progress == math.huge then rec.progress = nil end
  end
  rec.payload = string.sub(value, place)
  return rec
end

-- The task, or false for bytes that penstock did not write.
local function decode(value)
  local good, rec = pcall(read, value)
  return good and rec.state ~= '' and string.find('rqt~g!', rec.state, 1, true) and rec
end

-- The position of the payload; nil for bytes that penstock did not write.
local function payload_place(value)
  local flags = string.byte(value, 2)
  if flags and flags < 16 then return texts_place(flags) end
  local rec = decode(value)
  return rec and #value - #rec.payload + 1
end

-- A deadline has passed when now == deadline.
local function expired(rec) return rec.expires and rec.expires <= now and rec.state ~= 't' end

-- part: new_record
-- The numbers of a new task, from the spec of a put:
--   flags of its texts, rank1 base, clock, newest, rank2 base, clock, newest, pri, ttl, ttr, delay, number of its group or
--   false, whether that group is not started, whether it has a reply tube
local function rank(base, clock, newest, id) return base + (clock and now or 0) - (newest and id or 0) end

local function new_record(spec, id)
  local ttl, delay = spec[9], spec[11]
  local rec = {
    state = spec[13] and 'g' or delay > 0 and '~' or 'r', rank1 = rank(spec[2], spec[3], spec[4], id),
    rank2 = rank(spec[5], spec[6], spec[7], id), pri = spec[8], ttr = spec[10],
  }
  rec.expires = ttl and now + ttl + delay
  rec.at = delay > 0 and now + delay or rec.expires
  return rec
end
