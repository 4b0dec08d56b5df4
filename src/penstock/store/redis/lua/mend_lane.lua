-- mend_lane: count a micro-queue anew from its index, and make heads of its first tasks, at most so many moves.
-- ARGV: now, shape, limit, micro-queue, by how much its taken tasks are counted wrong, most moves
-- Answer: now, readied, removed, log, follows, more
-- WITH: moment base record decode step lanes
-- FLAGS: allow-oom
local utube, moves = ARGV[4], tonumber(ARGV[6])
local lane = lane_of(utube) or { taken = 0, heads = 0, waiting = 0, turn = 0 }
lanes[utube] = lane
lane.taken = math.max(0, lane.taken + tonumber(ARGV[5]))
lane.heads = redis.call('ZLEXCOUNT', k_queue, '[' .. lead(utube) .. 'h', '(' .. lead(utube) .. 'i')
lane.waiting = redis.call('ZLEXCOUNT', k_queue, '[' .. lead(utube) .. 'w', '(' .. lead(utube) .. 'x')
while moves > 0 do
  moves = moves - 1
  local first, worst = first_waiting(utube), worst_head(utube)
  if room(lane) < 0 and worst then
    demote(lane, worst)
  elseif room(lane) > 0 and first then
    promote(lane, first)
  elseif first and worst and before(first, fetch(first), worst, fetch(worst)) then
    demote(lane, worst)
  else
    break
  end
end
if fair and lane.heads > 0 then served(lane, utube) end
close()
return { now, readied, removed, log, follows, moves == 0 and 1 or 0 }
