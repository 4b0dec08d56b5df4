-- advance: do what is due, at most so many tasks.
-- ARGV: now, shape, limit, step
-- Answer: now, readied, removed, log, more, wait_ms
-- WITH: moment base record decode step lanes? lifecycle advance_part
-- FLAGS: allow-oom
local more = advance(tonumber(ARGV[4]))
if save_lanes then save_lanes() end
finish()
return { now, readied, removed, log, more and 1 or 0, wait_ms() }
