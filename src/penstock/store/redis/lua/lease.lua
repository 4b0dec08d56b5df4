-- Part: hand tasks out in order. ARGV: 4 handle, 5 count, 6 highest first rank or ''.
local leased = {}

local function hand_out(key, rec, session)
  rec.attempts, rec.lease, rec.taken = rec.attempts + 1, rec.lease + 1, now
  rec.owner, rec.at = session, rec.ttr and now + rec.ttr or nil
end

-- The next ready ones, passing over so many that were seen and left.
local function candidates(passed, most)
  local top = ARGV[6] ~= '' and ARGV[6] or '+inf'
  return redis.call('ZRANGEBYSCORE', k_ready, '-inf', top, 'LIMIT', passed, most)
end
