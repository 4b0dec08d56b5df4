-- put, for micro-queue tubes: store tasks in order, or none.
-- ARGV: as put
-- Answer: now, first id, the tasks' states as one string, and their second ranks; or now, -1, total without room.
-- WITH: moment base record made room spec decode step lanes add
local first, recs = last + 1, {}
for _, run in ipairs(runs) do
  for _ = 1, run[2] do
    last = last + 1
    local rec = made(run[1], last)
    rec.payload = ARGV[5 + last - first + 1]
    recs[#recs + 1] = rec
    add(rec)
  end
end
close()
local states, ranks = {}, {}
for i, rec in ipairs(recs) do
  states[i], ranks[i] = rec.state, string.format('%.17g', rec.rank2)
end
return { now, first, table.concat(states), ranks }
