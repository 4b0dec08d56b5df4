-- Kinds without leases: round (elements) and reliable (messages).

-- part: unleased
-- Public ids are texts. addresses: public id -> key. Messages are named in the order of their keys, so all messages of a
-- millisecond share one entry: ms -> difference of key and second number, how many messages are left. An imported message
-- that does not fit has its own entry.
-- `ms` and `seq` of meta are the last message id given, so that none is given twice. Messages up to the key `handed` of
-- meta were handed out or removed: the ready ones follow it, and need no ready index. No session holds tasks that were
-- handed out. delivered: messages by the serial number of their last hand-out.
-- KEYS: tasks addresses delivered
local clocked = string.find(ARGV[2], 'c', 1, true) ~= nil
local spans, split_name = {}, '^(%d+)%-(%d+)$'
in_order = not clocked

local function span_of(ms)
  if spans[ms] == nil then
    local stored = in_order and redis.call('HGET', k_addresses, ms)
    spans[ms] = stored and { struct.unpack('>I6I4', stored) } or false
  end
  return spans[ms]
end

key_named = function(name)
  local ms, seq = string.match(name, split_name)
  local span = ms and span_of(ms)
  local key = span and key_of(span[1] + seq)
  local value = key and redis.call('HGET', k_tasks, key)
  local rec = value and decode(value)
  if rec and rec.address == name then return key end
  return redis.call('HGET', k_addresses, name) or ''
end

-- Add `wanted` messages to the entry of their millisecond; one of them has this id and name. Returns whether they fit.
local function add_to_span(id, ms, seq, wanted)
  local span = span_of(ms)
  if span and span[1] ~= id - seq then return false end
  if id < seq then return false end
  spans[ms] = { id - seq, (span and span[2] or 0) + wanted, changed = true }
  return true
end

add_name = function(key, name)
  local ms, seq = string.match(name, split_name)
  if in_order and ms and add_to_span(id_of(key), ms, tonumber(seq), 1) then return end
  redis.call('HSET', k_addresses, name, key)
end

save_names = function()
  for ms, span in pairs(spans) do
    if span and span.changed and span[2] > 0 then
      redis.call('HSET', k_addresses, ms, struct.pack('>I6I4', span[1], span[2]))
    elseif span and span.changed then
      redis.call('HDEL', k_addresses, ms)
    end
  end
end

-- Returns a function that names new tasks as penstock.core.ids defines it: messages by time and number, replies in round tubes
-- by their key. The caller must list the names in `addresses`, unless the second result is true.
name_entries = function(wanted, last)
  if clocked then
    return function(_, key)
      local name = string.format('reply-%.0f', (struct.unpack('>I6', key)))
      while key_named(name) ~= '' do name = name .. '-' end
      return name
    end
  end
  local ms, seq = unpack(redis.call('HMGET', k_meta, 'ms', 'seq'))
  ms, seq = tonumber(ms or 0), tonumber(seq or 0)
  if now > ms then ms, seq = now, 0 end
  redis.call('HSET', k_meta, 'ms', ms, 'seq', seq + wanted)
  given_mark = { ms, seq }
  local lead = string.format('%.0f-', ms)
  local spanned = add_to_span(last + 1, string.sub(lead, 1, -2), seq + 1, wanted)
  return function(place) return lead .. string.format('%.0f', seq + place) end, spanned
end

-- If no message waits to be handed out, let hand-outs continue with the messages that are put next.
pass_all = function(there)
  if in_order and there == tonumber(redis.call('HGET', k_meta, 'taken') or 0) then
    redis.call('HSET', k_meta, 'handed', meta[1])
  end
end

local period = tonumber(ARGV[3])
delivered = k_delivered

task_removed = function(key, rec)
  local ms, seq = string.match(rec.address or '', split_name)
  local span = ms and span_of(ms)
  if span and span[1] + seq == id_of(key) then
    span[2], span.changed = span[2] - 1, true
  elseif rec.address then
    remove_from('HDEL', k_addresses, rec.address)
  end
end

-- The highest first rank that may be handed out now; an element that never was has rank 0.
local function clock_limit() return math.max(0, now - period) end

-- When the first element may be handed out; nil if that is now, or if there is no element.
next_hand_out = function()
  local rank = clocked and tonumber(redis.call('ZRANGE', k_ready, 0, 0, 'WITHSCORES')[2])
  return rank and rank > clock_limit() and rank + period or nil
end

-- part: hand_over
-- Hand-outs without a lease, as penstock.core.lifecycle defines: an element stays ready, behind all that were handed out
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
-- Returns: now, readied, removed, log, {id, record, ...}
-- WITH: now tube encode decode tasks unleased hand_over
-- FLAGS: allow-oom
local elapsed, handed, young = tonumber(ARGV[5]), {}, false
-- Each message moves to the end, so none is handed out twice in one call.
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
return { now, readied, removed, log, handed }
