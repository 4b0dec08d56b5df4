-- erase: the tasks of a tube that was moved, or did not arrive, and all that hangs on them; freed in the background.
-- `erased` of meta says that nothing of a sealed one is left.
-- KEYS: meta tasks ready due buried taken delivered lanes queue idle lapses handles ends stones
-- KEYS: addresses outcomes kept groups members moving marks
-- FLAGS: allow-oom
if redis.call('HEXISTS', k_meta, 'sealed') == 1 then redis.call('HSET', k_meta, 'erased', 1) end
local gone = {}
for _, key in ipairs(KEYS) do
  if key ~= k_meta then gone[#gone + 1] = key end
end
return redis.call('UNLINK', unpack(gone))
