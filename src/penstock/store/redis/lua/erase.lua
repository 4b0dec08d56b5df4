-- erase: the tasks of a tube that was moved, or did not arrive, and all that hangs on them; freed in the background.
-- KEYS: tasks ready due buried taken delivered lanes queue idle lapses handles ends stones
-- KEYS: addresses outcomes kept groups members moving
-- FLAGS: allow-oom
return redis.call('UNLINK', unpack(KEYS))
