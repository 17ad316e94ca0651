-- Writes down what people did elsewhere.
-- KEYS  the root of what belongs to no queue
-- ARGV  4 for each: who, note, verb, target, before, after

for n = 4, #ARGV, 6 do
  audit(KEYS[1], ARGV[n], ARGV[n + 1], ARGV[n + 2], ARGV[n + 3], ARGV[n + 4], ARGV[n + 5])
end
return 1
