-- Part: hand tasks out in order. ARGV: 4 handle, 5 count, 6 highest first rank or ''.
local leased, top = {}, ARGV[6] ~= '' and ARGV[6] or '+inf'

local function hand_out(key, rec, session)
  rec.attempts, rec.lease, rec.taken = rec.attempts + 1, math.max(rec.lease, lease_floor or 0) + 1, now
  rec.owner, rec.at = session, rec.ttr and now + rec.ttr or nil
end

-- Those past their ttl are passed by in their place; those gone with their group leave the ready index, for good, and
-- are removed later. So many of both a step: a take that got no further is made again.
local passed, withdrawn, MOST_SKIPPED = 0, 0, 1000

local function may_skip() return passed + withdrawn < MOST_SKIPPED end

-- The next ready ones. Where some were skipped, a hundred more at least are looked at: more of these will follow.
local function candidates(most)
  local some = passed + withdrawn > 0 and math.max(most, 100) or most
  return redis.call('ZRANGEBYSCORE', k_ready, '-inf', top, 'LIMIT', passed, some)
end

-- Whether a ready task is not to be handed out; and whether it leaves its place.
local function skipped(rec)
  local gone = rec.group_no and cancelled(rec)
  if gone then
    withdrawn = withdrawn + 1
  elseif expired(rec) then
    passed = passed + 1
  else
    return false
  end
  return true, gone
end
