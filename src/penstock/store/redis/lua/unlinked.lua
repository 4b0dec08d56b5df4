-- Part, only where nothing is known of addresses, replies and groups: a tube that has any needs the script that does.
if head[5] then return { -2 } end
