-- Part: what becomes of a task, as penstock.core.lifecycle decides it. A deadline is over at now == deadline.

local function removed_by(rec, event) return { state = '-', events = event, attempts = rec.attempts } end

-- A taken task loses its lease, by release (also at session end) or by ttr.
local function came_back(rec, event, delay, unstarted)
  local attempts = unstarted and rec.attempts - 1 or rec.attempts
  if rec.expires and rec.expires <= now then return { state = '-', events = event .. ' ttl', attempts = attempts } end
  local to = { state = 'r', events = event, at = rec.expires, expires = rec.expires, attempts = attempts, reason = rec.reason }
  if rec.max and attempts >= rec.max then
    to.state, to.events = '!', event == 'ttr' and 'ttr bury' or 'bury'
    if not rec.reason or rec.reason == '' then
      to.reason = 'handed out ' .. attempts .. ' times without an ack'
    end
  elseif delay > 0 then
    to.state, to.at, to.expires = '~', now + delay, rec.expires and rec.expires + delay
  end
  return to
end

local function expired(rec) return rec.expires and rec.expires <= now and rec.state ~= 't' end

-- What the clock does to a task whose `at` has come.
local function became_due(rec)
  if rec.state == 't' then return came_back(rec, 'ttr', 0, false) end
  if (rec.state == '~' or rec.state == 'g') and not expired(rec) then
    -- The delay of one whose group is not started is over: from now on only its ttl counts.
    local ready = rec.state == '~'
    return {
      state = ready and 'r' or 'g', events = ready and 'delay' or '', at = rec.expires, expires = rec.expires,
      attempts = rec.attempts, reason = rec.reason,
    }
  end
  return removed_by(rec, 'ttl')
end
