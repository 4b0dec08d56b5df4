-- script: settle
-- Apply each move whose guard still holds.
-- ARGV: now, shape, limit, moves: msgpack [[verb, id or name, session, lease, extra, reason, unstarted, code, which of
--   the results, the same as base64 if it is bytes, progress], ...], result, ...; code: fail's, as JSON; result:
--   ack's, as data is stored
-- Returns: now, readied, removed, log, follow_ups, {place in the log of each move, or 0}
-- WITH: now tube encode decode tasks micro_queues? lifecycle relations? unleased?
-- FLAGS: allow-oom
local LEASED = { ack = true, fail = true, release = true, touch = true }

-- Whether that lease (nil: any) is the live one.
local function alive(rec, lease)
  return rec.state == 't' and (lease == nil or rec.lease == lease) and (rec.at == nil or rec.at > now)
end

local function allowed(rec, verb, session, lease)
  if LEASED[verb] then return rec.owner == session and alive(rec, lease) end
  if verb == 'kick' then return rec.state == '!' end
  return lease == nil or alive(rec, lease)
end

-- How a task ended, for its outcome and its reply; nil if it has neither.
local function ending_of(rec, move)
  if not rec.address and not rec.reply_to then return nil end
  if move[1] == 'ack' then return { status = 'done', result = move[9] and ARGV[4 + move[9]], base64 = move[10] } end
  if move[1] == 'fail' then return { status = 'failed', error = move[6], code = move[8] } end
end

local function decide(rec, move)
  local verb, extra, reason = move[1], move[5], move[6]
  if verb == 'release' then
    if reason then rec.reason = reason end
    return lease_ended(rec, 'release', extra, move[7])
  elseif verb == 'touch' then
    local at = rec.at and rec.at + extra
    rec.progress = move[11] or rec.progress
    return {
      state = 't', events = 'touch', at = at, expires = rec.expires, attempts = rec.attempts, reason = rec.reason,
    }
  elseif verb == 'bury' then
    local why = reason and reason ~= '' and reason or rec.reason
    return {
      state = '!', events = 'bury', at = rec.expires, expires = rec.expires, attempts = rec.attempts, reason = why,
    }
  elseif verb == 'kick' then
    return { state = 'r', events = 'kick', at = rec.expires, expires = rec.expires, attempts = 0 }
  end
  local to = removed_by(rec, verb)
  to.ending = ending_of(rec, move)
  return to
end

-- Acked tasks are removed together, by few commands. If there are other verbs among the moves they are removed one by one,
-- because a released task enters an index that it must not be removed from later.
local moves, gathered, all_acks = cmsgpack.unpack(ARGV[4]), {}, true
for i, move in ipairs(moves) do
  gathered[i] = key_named and key_named(move[2]) or key_of(move[2])
  all_acks = all_acks and move[1] == 'ack'
end
if all_acks then removals = {} end
for i = 1, #gathered, 1000 do
  prefetch({ unpack(gathered, i, math.min(i + 999, #gathered)) })
end

local places = {}
for i, move in ipairs(moves) do
  local key = gathered[i]
  local rec = fetch(key)
  places[i] = 0
  if rec and rec.group_no and cancelled(rec) then
    change(key, rec, removed_by(rec, 'delete'))
  elseif rec and expired(rec) then
    change(key, rec, deadline_passed(rec))
  elseif rec and allowed(rec, move[1], move[3], move[4]) then
    places[i] = change(key, rec, decide(rec, move))
  end
end
if removals then flush_removals() end
commit()
return { now, readied, removed, log, follow_ups, places }
