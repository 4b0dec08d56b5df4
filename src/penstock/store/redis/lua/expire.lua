-- expire: end what has lapsed, for a look at the sessions.
-- ARGV: now, span
-- Answer: now, unfinished
-- WITH: moment registry
-- FLAGS: allow-oom
expire()
return { now, unfinished() }
