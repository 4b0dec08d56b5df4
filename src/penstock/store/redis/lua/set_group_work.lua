-- set_group_work: what is put at the end of a group, or after its cancel.
-- ARGV: now, shape, limit, number, end work or '', cancel work or ''
-- Answer: now, 1; or now, 0 when the group has ended
-- WITH: moment base record group
local no = tonumber(ARGV[4])
local group = group_of(no)
if not group or not live(group) then return { now, 0 } end
for i, letter in ipairs({ 'e', 'c' }) do
  if ARGV[4 + i] ~= '' then redis.call('HSET', k_groups, letter .. key_of(no), ARGV[4 + i]) end
end
if mark then mark('g' .. key_of(no)) end
return { now, 1 }
