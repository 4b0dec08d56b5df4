-- Part: a task as it is stored. penstock.store.redis.record reads and documents the same layout.
-- state letter, flags, created, then the fields that the flags name, then the payload.
local band = bit.band

local formats = { [0] = '>I2I6' }

-- The tables of names and codes are made where they are needed: a script pays for its prelude at every call.
local function format_of(flags)
  local format = formats[flags]
  if not format then
    local codes = {
      'd', 'd', 'I4', 'I4I4I6', 'I6', 'I6', '', 'I6', 'I4', 'I6', 'Bc0', 'Hc0', 'Hc0', '', 'Bc0', 'Bc0I6Bc0',
    }
    local i, flag = 1, 1
    format = '>I2I6'
    while flag <= flags do
      if band(flags, flag) ~= 0 then format = format .. codes[i] end
      i, flag = i + 1, flag + flag
    end
    formats[flags] = format
  end
  return format
end

local function encode(rec)
  local flags, out, n = 0, { 0, rec.created }, 2
  local function add(flag, value)
    flags, n = flags + flag, n + 1
    out[n] = value
  end
  if rec.rank1 ~= 0 then
    if rec.rank1 == rec.pri then flags = 8192 else add(1, rec.rank1) end
  end
  if rec.rank2 ~= 0 then add(2, rec.rank2) end
  if rec.pri ~= 0 then add(4, rec.pri) end
  if rec.taken then
    add(8, rec.attempts)
    add(0, rec.lease)
    add(0, rec.taken)
  end
  if rec.expires then add(16, rec.expires) end
  if rec.at then
    if rec.at == rec.expires then flags = flags + 64 else add(32, rec.at) end
  end
  if rec.ttr then add(128, rec.ttr) end
  if rec.max then add(256, rec.max) end
  if rec.owner then add(512, rec.owner) end
  if rec.utube then
    add(1024, #rec.utube)
    add(0, rec.utube)
  end
  if rec.reason then
    add(2048, #rec.reason)
    add(0, rec.reason)
  end
  if rec.callback then
    add(4096, #rec.callback)
    add(0, rec.callback)
  end
  if rec.address then
    add(16384, #rec.address)
    add(0, rec.address)
  end
  if rec.reply_to or rec.group_no then
    add(32768, #(rec.reply_to or ''))
    add(0, rec.reply_to or '')
    add(0, rec.group_no or 0)
    add(0, #(rec.group or ''))
    add(0, rec.group or '')
  end
  out[1] = flags
  local fields = struct.pack(format_of(flags), unpack(out, 1, n))
  if rec.progress and rec.state == 't' then return 'p' .. fields .. struct.pack('>d', rec.progress) .. rec.payload end
  return rec.state .. fields .. rec.payload
end

-- Eight bytes that sort as the number does.
local function sortable(number)
  if number == 0 then return '\128\0\0\0\0\0\0\0' end
  local bytes = struct.pack('>d', number)
  local first = string.byte(bytes)
  if first < 128 then return string.char(first + 128) .. string.sub(bytes, 2) end
  return (string.gsub(bytes, '.', function(byte) return string.char(255 - string.byte(byte)) end))
end

-- A task's field in the hash of tasks, and its name in every index: six bytes that sort as its id does.
local function key_of(id) return struct.pack('>I6', id) end
