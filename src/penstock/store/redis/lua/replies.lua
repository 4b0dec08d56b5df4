-- Replies of tasks, and their way from the outbox of one tube into another tube.

-- part: replies
-- Replies as penstock.core.reply makes them.
-- outbox: number -> number, time, name of the reply tube, data; for the next link of a chain, `>` and the length of the
-- result in four bytes, the result and the data of the task that was acked. Clients put them into the reply tube in the order of their
-- numbers and then remove them from the outbox; the reply tube remembers the highest number it received. `posted` of meta is
-- the last number.
-- KEYS: outbox
local function read_facts(stored)
  local _, packed, place = struct.unpack('>I6Hc0', stored)
  local facts = cmsgpack.unpack(packed)
  facts.texts = string.sub(stored, place)
  return facts
end

-- The public id. The facts of a shard end with the number of shards, its place and its floor: see penstock.core.shards.
local function public_id(id, facts)
  local floor = facts[6] or 0
  if not facts[4] or id <= floor then return id end
  return floor + (id - floor - 1) * facts[4] + facts[5] + 1
end

-- The tube that a task's reply goes to, or ''. The mark of a task that others follow stands before it.
local function reply_tube(rec) return (string.gsub(rec.reply_to or '', '^>', '')) end

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

local function post_reply(name, reply)
  local no = redis.call('HINCRBY', k_meta, 'posted', 1)
  redis.call('ZADD', k_outbox, no, struct.pack('>I6I6Bc0', no, now, #name, name) .. reply)
end

-- Whether a client that died left replies behind: the client that makes a reply puts it within a second.
local function left_behind()
  local first = redis.call('ZRANGE', k_outbox, 0, 0)[1]
  return first and struct.unpack('>I6', first, 7) <= now - 1000
end

local function outbox_entries(after)
  return redis.call('ZRANGEBYSCORE', k_outbox, '(' .. after, '+inf', 'LIMIT', 0, 1000)
end

-- script: read_outbox
-- Read replies that are still in the outbox, in order, above a number. For a dropped tube, first make the replies of its
-- remaining tasks, up to 500 a call.
-- KEYS: meta tasks outbox
-- ARGV: now, number, 1 to read all of them, not only overdue ones
-- Returns: now, state, entry, ...; state is 1 while replies of a dropped tube have yet to be made, 2 when the tube and
--   all its replies are gone, else 0
-- WITH: now encode decode replies
-- FLAGS: allow-oom
local ghost = redis.call('HGET', k_meta, 'ghost')
if ghost then
  local ids, facts = {}, read_facts(redis.call('HGET', k_meta, 'facts'))
  for i, key in ipairs(redis.call('HSCAN', k_tasks, 0, 'COUNT', 500)[2]) do
    if i % 2 == 1 then ids[#ids + 1] = id_of(key) end
  end
  table.sort(ids)
  for _, id in ipairs(ids) do
    local key = key_of(id)
    local rec = decode(redis.call('HGET', k_tasks, key))
    local to = rec and reply_tube(rec) or ''
    if to ~= '' and to ~= ghost then
      post_reply(to, reply_of(public_id(id, facts), rec, { status = 'deleted' }))
    end
    redis.call('HDEL', k_tasks, key)
  end
end
local more = ghost and redis.call('EXISTS', k_tasks) == 1
if ghost and not more and redis.call('EXISTS', k_outbox) == 0 then redis.call('DEL', k_meta) end
local gone = redis.call('EXISTS', k_meta) == 0
local all = ghost or ARGV[3] == '1' or left_behind()
return { now, more and 1 or gone and 2 or 0, unpack(all and outbox_entries(ARGV[2]) or {}) }

-- script: receive_replies
-- Put replies and links of chains from the outbox of another tube, each once, whatever the capacity. A link whose address
-- is or was in use was cancelled before its turn came.
-- inbox: tube -> the highest number received from it. Numbers arrive in order, so lower ones were received before.
-- KEYS: inbox addresses
-- ARGV: now, shape, limit, number of the other tube, facts, number, 1 if it is a link with an address, spec: msgpack, tail,
--   ...
-- Returns: now, readied, removed, log, follow_ups
-- WITH: now tube encode new_record decode tasks micro_queues? names? unleased? add_entries
-- FLAGS: allow-oom
local done = tonumber(redis.call('HGET', k_inbox, ARGV[4]) or 0)
for i = 6, #ARGV, 4 do
  local no, spec, tail = tonumber(ARGV[i]), cmsgpack.unpack(ARGV[i + 2]), ARGV[i + 3]
  local at = band(spec[1], 16) ~= 0 and 2 + string.byte(tail) or 1
  if no > done and (ARGV[i + 1] == '' or redis.call('HEXISTS', k_addresses, (text_at(tail, at))) == 0) then
    if ARGV[i + 1] ~= '' and not meta[5] then redis.call('HSETNX', k_meta, 'facts', ARGV[5]) end
    if spec[14] then redis.call('HSETNX', k_meta, 'posted', 0) end
    add_entries({ { spec, 1 } }, { tail }, 0, true)
  end
  done = math.max(done, no)
end
redis.call('HSET', k_inbox, ARGV[4], done)
commit()
return { now, readied, removed, log, follow_ups }

-- script: remove_sent_replies
-- Remove replies that the reply tubes have received.
-- KEYS: outbox
-- ARGV: number, ...
-- FLAGS: allow-oom
for i = 1, #ARGV do redis.call('ZREMRANGEBYSCORE', k_outbox, ARGV[i], ARGV[i]) end
return 1
