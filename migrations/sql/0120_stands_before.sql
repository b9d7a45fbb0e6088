-- Whether a snapshot has nothing of message p_from and what follows it.
create function stands_before(p_conversation uuid, p_version integer, p_from integer) returns boolean
language sql stable as $$
    select exists (
        select from public.snapshot_parts as s
        where s.conversation_id = p_conversation and s.version = p_version and s.covers_through < p_from
            and not exists (select from jsonb_array_elements(s.pins) as pin where (pin ->> 1)::integer >= p_from))
$$;
