-- Part: new tasks from what a put says of them. A spec is
--   rank1 base, clock, newest, rank2 base, clock, newest, pri, utube, ttl, ttr, delay, max_attempts, callback
local function rank(base, clock, newest, id) return base + (clock and now or 0) - (newest and id or 0) end

local function made(spec, id)
  local ttl, delay = spec[9], spec[11]
  local rec = {
    state = delay > 0 and '~' or 'r', attempts = 0, lease = 0, created = now, payload = '',
    rank1 = rank(spec[1], spec[2], spec[3], id), rank2 = rank(spec[4], spec[5], spec[6], id),
    pri = spec[7], utube = spec[8], ttr = spec[10], max = spec[12], callback = spec[13],
  }
  rec.expires = ttl and now + ttl + delay
  rec.at = delay > 0 and now + delay or rec.expires
  return rec
end
