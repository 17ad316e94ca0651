-- Readable from 9001 on.
-- What the version after it takes away.
drop trigger relevo_coloured;
drop table relevo_colours;
