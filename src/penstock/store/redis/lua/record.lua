-- Tasks as they are stored. penstock.store.redis.encoding documents the layout and reads it too.

-- part: encode
-- State letter, flags, created, then the fields that the flags name, then the payload.
local formats = { [0] = '>I2I6' }

-- Tables of names and codes are made on demand: a script pays for its prelude at every call.
local function format_of(flags)
  local format = formats[flags]
  if not format then
    local codes = {
      'd', 'd', 'I4', 'I4I8I6', 'I6', 'I6', '', 'I6', '', 'I6', 'Bc0', 'Hc0', 'Hc0', '', 'Bc0', 'Bc0I6Bc0',
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
  local function add_text(flag, text)
    if text then
      add(flag, #text)
      add(0, text)
    end
  end
  if rec.rank1 ~= 0 then
    if rec.rank1 == rec.pri then flags = 8192 else add(1, rec.rank1) end
  end
  if rec.rank2 ~= 0 then add(2, rec.rank2) end
  if rec.pri ~= 0 then add(4, rec.pri) end
  if rec.taken then
    add(8, rec.attempts + (rec.failed and 2147483648 or 0))
    add(0, rec.lease)
    add(0, rec.taken)
  end
  if rec.expires then add(16, rec.expires) end
  if rec.at then
    if rec.at == rec.expires then flags = flags + 64 else add(32, rec.at) end
  end
  if rec.ttr then add(128, rec.ttr) end
  if rec.owner then add(512, rec.owner) end
  add_text(1024, rec.utube)
  add_text(2048, rec.reason)
  add_text(4096, rec.extra)
  add_text(16384, rec.address)
  if rec.reply_to or rec.group_no then
    add_text(32768, rec.reply_to or '')
    add(0, rec.group_no or 0)
    add_text(0, rec.group or '')
  end
  out[1] = flags
  local fields = struct.pack(format_of(flags), unpack(out, 1, n))
  if rec.progress and rec.state == 't' then return 'p' .. fields .. struct.pack('>d', rec.progress) .. rec.payload end
  return rec.state .. fields .. rec.payload
end

local function inverted(bytes)
  return (string.gsub(bytes, '.', function(byte) return string.char(255 - string.byte(byte)) end))
end

-- Eight bytes that sort like the number.
local function sortable(number)
  if number == 0 then return '\128\0\0\0\0\0\0\0' end
  local bytes = struct.pack('>d', number)
  local first = string.byte(bytes)
  if first < 128 then return string.char(first + 128) .. string.sub(bytes, 2) end
  return inverted(bytes)
end

-- The number that the first of these bytes sort like.
local function number_of(bytes)
  local first = string.byte(bytes)
  if first >= 128 then return (struct.unpack('>d', string.char(first - 128) .. string.sub(bytes, 2, 8))) end
  return (struct.unpack('>d', inverted(string.sub(bytes, 1, 8))))
end

-- A task's field in the hash of tasks and its member in indexes: six bytes that sort like its id.
local function key_of(id) return struct.pack('>I6', id) end

-- part: layout
-- Where the numbers of a stored task with these flags begin, or would begin, by flag; `texts`: where its texts do.
local layouts = {}

local function layout_of(flags)
  local layout = layouts[flags]
  if not layout then
    local place, flag = 10, 1
    layout = {}
    for _, size in ipairs({ 8, 8, 4, 18, 6, 6, 0, 6, 0, 6 }) do
      layout[flag] = place
      if band(flags, flag) ~= 0 then place = place + size end
      flag = flag + flag
    end
    layout.texts = place
    layouts[flags] = layout
  end
  return layout
end

-- Where the text of a flag begins in a stored task: after its utube, reason, extra and address, if it has them.
local function text_place(value, flags, wanted)
  local place, flag = layout_of(flags).texts, 1024
  if wanted == 16384 and band(flags, 1024 + 2048 + 4096) == 0 then return place end
  while flag < wanted do
    if flag ~= 8192 and band(flags, flag) ~= 0 then
      local high, low = string.byte(value, place, place + 1)
      local wide = flag == 2048 or flag == 4096
      place = place + (wide and 2 + (high or 0) * 256 + (low or 0) or 1 + (high or 0))
    end
    flag = flag + flag
  end
  return place
end

-- part: decode
local orders = { [0] = {} }

-- The names of the fields that these flags stand for, in order.
local function order_of(flags)
  local order = orders[flags]
  if not order then
    local names = {
      'rank1', 'rank2', 'pri', 'attempts', 'expires', 'at', '', 'ttr', '', 'owner', 'utube', 'reason', 'extra', '',
      'address', 'reply_to',
    }
    local i, flag = 1, 1
    order = {}
    while flag <= flags do
      if band(flags, flag) ~= 0 and names[i] ~= '' then
        order[#order + 1] = names[i]
        if flag == 8 or flag == 32768 then
          order[#order + 1] = flag == 8 and 'lease' or 'group_no'
          order[#order + 1] = flag == 8 and 'taken' or 'group'
        end
      end
      i, flag = i + 1, flag + flag
    end
    orders[flags] = order
  end
  return order
end

local function read(value)
  local flags = struct.unpack('>I2', value, 2)
  local fields, order = { struct.unpack(format_of(flags), value, 2) }, order_of(flags)
  local rec = {
    state = string.sub(value, 1, 1), created = fields[2], rank1 = 0, rank2 = 0, pri = 0, attempts = 0, lease = 0,
  }
  for i = 1, #order do rec[order[i]] = fields[i + 2] end
  if rec.attempts >= 2147483648 then
    rec.attempts, rec.failed = rec.attempts - 2147483648, true
  end
  if band(flags, 64) ~= 0 then rec.at = rec.expires end
  if band(flags, 8192) ~= 0 then rec.rank1 = rec.pri end
  if rec.reply_to == '' then rec.reply_to = nil end
  if rec.group_no == 0 then rec.group_no, rec.group = nil, nil end
  local rest = fields[#fields]
  if rec.state == 'p' then
    rec.state, rec.progress, rest = 't', struct.unpack('>d', value, rest)
  end
  rec.payload = string.sub(value, rest)
  return rec
end

-- The task, or false for bytes that penstock did not write.
local function decode(value)
  local good, rec = pcall(read, value)
  return good and rec.state ~= '' and string.find('rqt~g!', rec.state, 1, true) and rec
end

local function id_of(key) return (struct.unpack('>I6', key, #key - 5)) end

local function key_in(member) return string.sub(member, -6) end

-- part: new_record
-- New tasks, from the spec of a put:
--   rank1 base, clock, newest, rank2 base, clock, newest, pri, utube, ttl, ttr, delay, extra
local function rank(base, clock, newest, id) return base + (clock and now or 0) - (newest and id or 0) end

local function new_record(spec, id)
  local ttl, delay = spec[9], spec[11]
  local rec = {
    state = delay > 0 and '~' or 'r', attempts = 0, lease = 0, created = now, payload = '',
    rank1 = rank(spec[1], spec[2], spec[3], id), rank2 = rank(spec[4], spec[5], spec[6], id),
    pri = spec[7], utube = spec[8], ttr = spec[10], extra = spec[12],
  }
  rec.expires = ttl and now + ttl + delay
  rec.at = delay > 0 and now + delay or rec.expires
  return rec
end
