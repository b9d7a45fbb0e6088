-- What providers counted for the calls that turns came from, a row a turn: written in batches off the request path, and reckoned by
-- sweepers afterwards: what the call began with as the one before it did, and what it would have cost without compaction.
-- squawk-ignore-file require-concurrent-index-creation -- the table is new and empty
alter table run_steps add column shared_tokens integer;

create table turn_usages (
    tenant_id uuid not null,
    conversation_id uuid
        constraint fk_turn_usages_conversation_id_conversations references conversations (id),
    -- Of the turn's first message.
    seq integer,
    -- That the call was made with; where nobody said, the head when this was written.
    snapshot_version integer not null,
    input_tokens integer not null,
    -- Of these, read from a cache and written to one; null where the usage does not say.
    cached_tokens integer,
    written_tokens integer,
    output_tokens integer not null,
    is_edit boolean not null,
    answered_at timestamptz not null,
    -- Null until it is reckoned.
    reckoned_at timestamptz,
    -- That this call and the one before it begin with; null where that is not known.
    prefix_tokens integer,
    -- Those of them that a cache still had.
    expected_tokens integer,
    -- That messages have which the context does not show, less what stands for them.
    saved_tokens integer,
    -- Of the input; null where nobody knows the model's price. With the cache as it was, and as if there were none.
    cost_usd numeric(14, 6),
    saved_usd numeric(14, 6),
    saved_uncached_usd numeric(14, 6),
    constraint pk_turn_usages primary key (conversation_id, seq)
);
create index ix_turn_usages_reckoned_at on turn_usages (answered_at) where reckoned_at is null;
create index ix_turn_usages_tenant_id_answered_at on turn_usages (tenant_id, answered_at);
alter table turn_usages enable row level security;
alter table turn_usages force row level security;
create policy tenant on turn_usages
    using (tenant_id = nullif(current_setting('app.tenant_id', true), '')::uuid)
    with check (tenant_id = nullif(current_setting('app.tenant_id', true), '')::uuid);
grant select, insert,
    update (reckoned_at, prefix_tokens, expected_tokens, saved_tokens, cost_usd, saved_usd, saved_uncached_usd)
    on turn_usages to palimpsest_service;
create trigger turn_usages_not_erased after insert on turn_usages for each row execute function guard_erased();
create function forget_turn_usages() returns trigger language plpgsql
set search_path = pg_catalog, public, pg_temp as $$
begin
    delete from public.turn_usages as u where u.conversation_id = new.id;
    return new;
end $$;
create trigger conversations_forget_turn_usages after update of erased_at on conversations
    for each row when (new.erased_at is not null) execute function forget_turn_usages();
create policy background_erases on turn_usages to palimpsest_background using (true) with check (true);
grant select (tenant_id, conversation_id, seq, answered_at, reckoned_at), update (answered_at), delete on turn_usages
    to palimpsest_background;

-- For the sweeper: the tenants of what is to be reckoned, the oldest first.
create function usages_to_reckon(p_limit integer) returns setof uuid
language sql stable security definer set search_path = pg_catalog, public, pg_temp as $$
    select distinct due.tenant_id from (
        select u.tenant_id from public.turn_usages as u where u.reckoned_at is null order by u.answered_at limit p_limit
    ) as due
$$;
create function expire_turn_usages(p_seconds double precision, p_limit integer) returns integer
language plpgsql security definer set search_path = pg_catalog, public, pg_temp as $$
declare
    v_removed integer;
begin
    delete from public.turn_usages as u
        where (u.conversation_id, u.seq) in (
            select o.conversation_id, o.seq from public.turn_usages as o
            where o.answered_at < now() - make_interval(secs => p_seconds)
            limit p_limit for update skip locked);
    get diagnostics v_removed = row_count;
    return v_removed;
end $$;
create index ix_turn_usages_answered_at on turn_usages using brin (answered_at);
grant create on schema public to palimpsest_background;
alter function usages_to_reckon owner to palimpsest_background;
alter function expire_turn_usages owner to palimpsest_background;
revoke create on schema public from palimpsest_background;
revoke execute on function usages_to_reckon from public;
revoke execute on function expire_turn_usages from public;
grant execute on function usages_to_reckon to palimpsest_service;
grant execute on function expire_turn_usages to palimpsest_service;

-- For auditors: a row a call. What was expected of the cache beside what the provider read from it: where much is missing, and the
-- prefix held, the break was not ours.
create view prompt_cache_turns with (security_invoker = true) as
select t.name as tenant,
       u.conversation_id,
       u.seq,
       u.snapshot_version,
       u.answered_at,
       u.input_tokens,
       u.output_tokens,
       u.cached_tokens,
       u.written_tokens,
       u.prefix_tokens,
       u.expected_tokens,
       greatest(0, u.expected_tokens - u.cached_tokens) as missing_tokens,
       u.saved_tokens,
       u.cost_usd,
       u.saved_usd,
       u.saved_uncached_usd
from turn_usages as u join tenants as t on t.id = u.tenant_id;

-- A row for each conversation and day (UTC): what its calls took in, and what compaction has saved of that.
create view compaction_savings with (security_invoker = true) as
select t.name as tenant,
       u.conversation_id,
       (u.answered_at at time zone 'utc')::date as day,
       count(*) as calls,
       sum(u.input_tokens) as input_tokens,
       sum(u.cached_tokens) as cached_tokens,
       sum(u.expected_tokens) as expected_tokens,
       sum(u.saved_tokens) as saved_tokens,
       sum(u.cost_usd) as cost_usd,
       sum(u.saved_usd) as saved_usd,
       sum(u.saved_uncached_usd) as saved_uncached_usd
from turn_usages as u join tenants as t on t.id = u.tenant_id
group by t.name, u.conversation_id, 3;
grant select on prompt_cache_turns, compaction_savings to palimpsest_auditor;
create policy auditor on turn_usages for select to palimpsest_auditor using (true);
grant select on turn_usages to palimpsest_auditor;
