-- Part: hand tasks out in order. ARGV: 4 handle, 5 count, 6 highest first rank or ''.
local leased, top = {}, ARGV[6] ~= '' and ARGV[6] or '+inf'

local function hand_out(key, rec, session)
  rec.attempts, rec.lease, rec.taken = rec.attempts + 1, math.max(rec.lease, lease_floor or 0) + 1, now
  rec.owner, rec.at = session, rec.ttr and now + rec.ttr or nil
end

-- The next ready ones, passing over so many that were seen and left: where there are some, a hundred more at least are
-- looked at, because each look walks past all of them.
local function candidates(passed, most)
  return redis.call('ZRANGEBYSCORE', k_ready, '-inf', top, 'LIMIT', passed, passed > 0 and math.max(most, 100) or most)
end

-- Past its ttl, or gone with its group, and not removed yet.
local function gone(rec) return expired(rec) or (rec.group_no and cancelled(rec)) end
