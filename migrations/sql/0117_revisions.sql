-- A conversation's next revision, by which an answer's ETag is told from another's. A failover or a restored backup may lose
-- the newest changes, and those that come instead would be counted the same. 32 random bits keep the two apart; a bigint has
-- room for two thousand million changes of a conversation.
create function next_revision(p_revision bigint) returns bigint language sql volatile as $$
    select p_revision + 1 + floor(random() * 4294967296)::bigint
$$;
