-- Part: stored tasks read, as record.lua writes them.
local orders = { [0] = {} }

-- The names of the fields that the flags stand for, in order.
local function order_of(flags)
  local order = orders[flags]
  if not order then
    local names = {
      'rank1', 'rank2', 'pri', 'attempts', 'expires', 'at', '', 'ttr', 'max', 'owner', 'utube', 'reason', 'callback', '',
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
