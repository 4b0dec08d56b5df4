-- Kinds without leases: round (elements) and reliable (messages).

-- part: unleased
-- Ids are texts, and nobody holds what was handed out.
-- addresses: public id -> key. delivered: messages that were handed out, by the serial number of the last hand-out.
-- `ms` and `seq` of meta are the last message id given, so that none is given twice.
-- KEYS: addresses delivered
local clocked, period = string.find(ARGV[2], 'c', 1, true) ~= nil, tonumber(ARGV[3])
delivered, message_names = k_delivered, k_addresses

key_named = function(name) return redis.call('HGET', k_addresses, name) or '' end

task_removed = function(key, rec)
  if rec.address then remove_from('HDEL', k_addresses, rec.address) end
end

-- Reserve message ids, as penstock.core.ids defines them: returns their ms and the seq that they follow.
local function next_message_ids(wanted)
  local last = redis.call('HMGET', k_meta, 'ms', 'seq')
  local ms, seq = tonumber(last[1] or 0), tonumber(last[2] or 0)
  if now > ms then ms, seq = now, 0 end
  redis.call('HSET', k_meta, 'ms', ms, 'seq', seq + wanted)
  return ms, seq
end

local function message_id(ms, seq) return string.format('%.0f-%.0f', ms, seq) end

name_reply = function(key, rec)
  if clocked then
    rec.address = string.format('reply-%.0f', id_of(key))
    while key_named(rec.address) ~= '' do rec.address = rec.address .. '-' end
  else
    local ms, seq = next_message_ids(1)
    rec.address = message_id(ms, seq + 1)
  end
  redis.call('HSET', k_addresses, rec.address, key)
end

-- The highest first rank that may be handed out now; an element that never was has rank 0.
local function clock_limit() return math.max(0, now - period) end

-- When the first element may be handed out; nil if there is none, or if it may be now.
next_hand_out = function()
  local rank = clocked and tonumber(redis.call('ZRANGE', k_ready, 0, 0, 'WITHSCORES')[2])
  return rank and rank > clock_limit() and rank + period or nil
end

-- part: hand_over
-- Hand-outs without a lease, as decided by penstock.core.lifecycle: an element stays ready, behind all that were handed out
-- before; a message moves to the end of the delivered ones.
local serial

-- Hand out up to a thousand tasks; adds id, record, ... to `found`.
local function hand_over(keys, recs, found)
  local tasks, places = {}, {}
  serial = serial or tonumber(redis.call('HGET', k_meta, 'take') or 0)
  for i, rec in ipairs(recs) do
    serial = serial + 1
    rec.attempts, rec.taken, rec.rank1 = rec.attempts + 1, now, clocked and now or serial
    if not clocked then rec.state = 't' end
    local value = encode(rec)
    if mark_changed then mark_changed('t' .. keys[i]) end
    tasks[2 * i - 1], tasks[2 * i] = keys[i], value
    places[2 * i - 1], places[2 * i] = rec.rank1, keys[i]
    found[#found + 1] = id_of(keys[i])
    found[#found + 1] = value
  end
  call_with('HSET', k_tasks, tasks)
  call_with('ZADD', clocked and k_ready or k_delivered, places)
end

-- script: recover
-- Hand out again up to count delivered messages, oldest hand-out first, that were handed out at least elapsed ms ago.
-- ARGV: now, shape, limit, count, elapsed
-- Returns: now, readied, removed, log, follow_ups, {id, record, ...}
-- WITH: now tube encode decode tasks unleased hand_over
-- FLAGS: allow-oom
local elapsed, handed, young = tonumber(ARGV[5]), {}, false
-- Each moves to the end, behind all others, so none is handed out twice in one call.
local left_over = meta[2] == '1' and 0 or math.min(tonumber(ARGV[4]), redis.call('ZCARD', k_delivered))
while left_over > 0 and not young do
  local page, keys, recs = redis.call('ZRANGE', k_delivered, 0, math.min(left_over, 1000) - 1), {}, {}
  for i, value in ipairs(redis.call('HMGET', k_tasks, unpack(page))) do
    local rec = value and decode(value)
    if not rec then
      redis.call('ZREM', k_delivered, page[i])
    elseif (rec.taken or 0) + elapsed > now then
      young = true
      break
    else
      keys[#keys + 1], recs[#recs + 1] = page[i], rec
    end
  end
  hand_over(keys, recs, handed)
  left_over = left_over - #page
end
count('take', #handed / 2)
commit()
return { now, readied, removed, log, follow_ups, handed }
