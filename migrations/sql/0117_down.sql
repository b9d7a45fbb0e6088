drop function next_revision(bigint);
