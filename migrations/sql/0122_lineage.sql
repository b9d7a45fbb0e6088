-- A snapshot that covers less than those before it, as a restore makes it, shows what they covered as it came again: so far the
-- last that was told of such a message was what had become of it before.
create or replace view message_lineage with (security_invoker = true) as
select t.name as tenant,
       c.id as conversation_id,
       told.seq,
       told.role,
       told.tokens,
       told.superseded_at,
       told.version,
       told.fate,
       told.run_id,
       told.step,
       told.at
from conversations as c
    join tenants as t on t.id = c.tenant_id
    cross join lateral (
        with recursive chain as (
            select s.version, s.parent_version, s.run_id, s.coverage, s.step, s.created_at
            from snapshot_parts as s where s.conversation_id = c.id and s.version = c.head_version
            union all
            select s.version, s.parent_version, s.run_id, s.coverage, s.step, s.created_at
            from snapshot_parts as s join chain on s.version = chain.parent_version
            where s.conversation_id = c.id
        ), covering as (
            select ends.*, max(ends.through) over (order by ends.version rows between unbounded preceding and 1 preceding)
                       as before
            from (select chain.*, coalesce((select max((span.value ->> 1)::integer)
                                            from jsonb_array_elements(chain.coverage) as span), -1) as through
                  from chain) as ends
        ), fates as (
            select m.seq, 0 as version, 'kept' as fate, null::uuid as run_id, null as step, m.created_at as at
            from messages as m where m.conversation_id = c.id
            union all
            select covered.seq, chain.version, span.value ->> 2, (span.value ->> 3)::uuid, chain.step, chain.created_at
            from chain
                cross join lateral jsonb_array_elements(chain.coverage) as span
                cross join lateral
                    generate_series((span.value ->> 0)::integer, (span.value ->> 1)::integer) as covered (seq)
            union all
            select shown.seq, back.version, 'kept', back.run_id, back.step, back.created_at
            from covering as back
                cross join lateral generate_series(back.through + 1, back.before) as shown (seq)
        ), changed as (
            select f.*, lag(f.fate) over (partition by f.seq order by f.version) is distinct from f.fate as is_new
            from fates as f
        )
        select m.seq, m.role, m.tokens, m.superseded_at, d.version, d.fate, d.run_id, d.step, d.at
        from changed as d join messages as m on m.conversation_id = c.id and m.seq = d.seq
        where d.is_new
    ) as told;
