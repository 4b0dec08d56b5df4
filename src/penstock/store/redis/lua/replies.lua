-- Part: replies, as penstock.core.reply makes them, and those on their way to other tubes.
-- KEYS: outbox
-- outbox: number -> number, moment, name of the reply tube, data. A client puts them there, in the order of their numbers,
-- and then takes them out; the reply tube remembers the highest number it got. meta has the last number as `posted`.

-- The id that people know: the facts of a shard end with how many there are, which it is, and its floor: see
-- penstock.core.shards.
local function public_id(id, facts)
  local floor = facts[6] or 0
  if not facts[4] or id <= floor then return id end
  return floor + (id - floor - 1) * facts[4] + facts[5] + 1
end

local function reply_of(id, rec, ending)
  local text = '{"id":' .. string.format('%.0f', id) .. ',"address":' .. (rec.address and cjson.encode(rec.address) or 'null')
    .. ',"status":"' .. ending.status .. '"'
  if ending.status ~= 'done' then
    text = text .. ',"error":' .. (ending.error and cjson.encode(ending.error) or 'null')
    if ending.code then text = text .. ',"code":' .. ending.code end
  elseif ending.base64 then
    text = text .. ',"result":"' .. ending.base64 .. '","encoding":"base64"'
  else
    text = text .. ',"result":' .. (ending.result or 'null')
  end
  return text .. '}'
end

local function post(name, reply)
  local no = redis.call('HINCRBY', k_meta, 'posted', 1)
  redis.call('ZADD', k_outbox, no, struct.pack('>I6I6Bc0', no, now, #name, name) .. reply)
end

-- Whether one who died left replies behind: who makes them puts them, and needs no second for it.
local function left_behind()
  local first = redis.call('ZRANGE', k_outbox, 0, 0)[1]
  return first and struct.unpack('>I6', first, 7) <= now - 1000
end

local function letters(after)
  return redis.call('ZRANGEBYSCORE', k_outbox, '(' .. after, '+inf', 'LIMIT', 0, 1000)
end
