-- On a cluster: removes deliveries by a person's word.
-- KEYS  the root of a source
-- ARGV  4 the ids …
-- Answers how many.

local ids = {}
for n = 4, #ARGV do
  ids[n - 3] = ARGV[n]
end
return erase_deliveries(KEYS[1], ids)
