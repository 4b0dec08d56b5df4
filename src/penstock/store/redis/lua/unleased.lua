-- Part, only of tubes that lease nothing: ids that are texts, and hand-outs that nobody holds.
-- KEYS: addresses delivered
-- addresses: id as people know it -> key. delivered: messages that were handed out, by the serial of the last time.
-- `ms` and `seq` of meta are the last message id, which is never given again.
-- ARGV[2] has `c` where a hand-out sets a clock, and ARGV[3] is then the period between two of an element.
local clocked, period = string.find(ARGV[2], 'c', 1, true) ~= nil, tonumber(ARGV[3])
delivered = k_delivered

key_named = function(name) return redis.call('HGET', k_addresses, name) or '' end

left = function(key, rec)
  if rec.address then take_out('HDEL', k_addresses, rec.address) end
end

-- The next message ids are this moment and the numbers above this one, as penstock.core.ids says; so many are used up.
local function next_marks(wanted)
  local last = redis.call('HMGET', k_meta, 'ms', 'seq')
  local ms, seq = tonumber(last[1] or 0), tonumber(last[2] or 0)
  if now > ms then ms, seq = now, 0 end
  redis.call('HSET', k_meta, 'ms', ms, 'seq', seq + wanted)
  return ms, seq
end

local function shown_mark(ms, seq) return string.format('%.0f-%.0f', ms, seq) end

name_reply = function(key, rec)
  if clocked then
    rec.address = string.format('reply-%.0f', id_of(key))
    while key_named(rec.address) ~= '' do rec.address = rec.address .. '-' end
  else
    local ms, seq = next_marks(1)
    rec.address = shown_mark(ms, seq + 1)
  end
  redis.call('HSET', k_addresses, rec.address, key)
end

-- The highest first rank that may be handed out now; 0 is that of an element that never was.
local function clock_limit() return math.max(0, now - period) end

-- When the first element may be handed out; nil: there is none, or it may be now.
next_hand_out = function()
  local rank = clocked and tonumber(redis.call('ZRANGE', k_ready, 0, 0, 'WITHSCORES')[2])
  return rank and rank > clock_limit() and rank + period or nil
end
