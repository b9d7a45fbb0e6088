-- Summaries that are not urgent, asked for at half price: one row is one Message Batch at the provider, from the wish for it to
-- its end. What it was made of is in zone_messages, part_ends and fingerprint; the answers are kept from the moment they are
-- known until they are in a snapshot, or of no use. Attempts are counted before they are made; next_attempt_at says when another
-- one is due should nobody tell how this one went.
create table model_batches (
    id uuid constraint pk_model_batches primary key,
    tenant_id uuid not null,
    conversation_id uuid not null
        constraint fk_model_batches_conversation_id_conversations references conversations (id) on delete cascade,
    state text not null default 'wanted'
        constraint ck_model_batches_state check (state in (
            'wanted', 'sending', 'submitted', 'canceling', 'ended', 'committed', 'discarded', 'superseded', 'failed')),
    request_id uuid,
    base_version integer,
    first_seq integer,
    last_seq integer,
    zone_messages integer,
    part_ends integer[],
    fingerprint text,
    canary text,
    model text,
    prompt_version text,
    answer_tokens integer,
    provider_batch_id text,
    answers text[],
    model_calls integer not null default 0,
    model_input_tokens integer,
    model_output_tokens integer,
    cost_usd numeric(14, 6),
    attempts integer not null default 0,
    failures integer not null default 0,
    next_attempt_at timestamptz not null default now(),
    run_id uuid constraint fk_model_batches_run_id_runs references runs (id) on delete set null,
    reason text,
    error text,
    created_at timestamptz not null default now(),
    sent_at timestamptz,
    expires_at timestamptz,
    finished_at timestamptz
);
-- squawk-ignore-file require-concurrent-index-creation -- the table is new and empty
create unique index uq_model_batches_open on model_batches (conversation_id)
    where state in ('wanted', 'sending', 'submitted', 'canceling', 'ended');
create index ix_model_batches_conversation_id_id on model_batches (conversation_id, id);
create index ix_model_batches_due on model_batches (next_attempt_at)
    where state in ('wanted', 'sending', 'submitted', 'canceling', 'ended');
create index ix_model_batches_provider_batch_id on model_batches (provider_batch_id);
create index ix_model_batches_run_id on model_batches (run_id);

alter table model_batches enable row level security;
alter table model_batches force row level security;
create policy tenant on model_batches
    using (tenant_id = nullif(current_setting('app.tenant_id', true), '')::uuid)
    with check (tenant_id = nullif(current_setting('app.tenant_id', true), '')::uuid);
create policy background on model_batches to palimpsest_background using (true) with check (true);

grant select, insert on model_batches to palimpsest_service;
grant update (state, base_version, first_seq, last_seq, zone_messages, part_ends, fingerprint, canary, model,
              prompt_version, answer_tokens, provider_batch_id, answers, model_calls, model_input_tokens,
              model_output_tokens, cost_usd, attempts, failures, next_attempt_at, run_id, reason, error, sent_at,
              expires_at, finished_at)
    on model_batches to palimpsest_service;
grant select (id, tenant_id, conversation_id, state, provider_batch_id, next_attempt_at), insert
    on model_batches to palimpsest_background;
grant select (check_request_id) on conversations to palimpsest_background;

-- For checks: wish for a batch for each of some conversations of any tenant, unless it has one that is not over.
create function want_batches(p_ids uuid[], p_conversations uuid[]) returns table (batch_id uuid, tenant_id uuid)
language sql security definer set search_path = pg_catalog, public as $$
    insert into public.model_batches as made (id, tenant_id, conversation_id, request_id)
    select wanted.id, c.tenant_id, c.id, c.check_request_id
    from unnest(p_ids, p_conversations) as wanted (id, conversation_id)
        join public.conversations as c on c.id = wanted.conversation_id
    on conflict do nothing
    returning made.id, made.tenant_id
$$;

-- For the sweeper: batches of any tenant that something is to be done about.
create function due_batches(p_limit integer) returns table (
    batch_id uuid, tenant_id uuid, next_attempt_at timestamptz
) language sql stable security definer set search_path = pg_catalog, public as $$
    select b.id, b.tenant_id, b.next_attempt_at from public.model_batches as b
    where b.state in ('wanted', 'sending', 'submitted', 'canceling', 'ended') and b.next_attempt_at <= now()
    order by b.next_attempt_at limit p_limit
$$;

-- Which of the provider's batches belong to a row, of whatever tenant: one key serves all of them.
create function known_batches(p_provider_ids text[]) returns setof text
language sql stable security definer set search_path = pg_catalog, public as $$
    select b.provider_batch_id from public.model_batches as b where b.provider_batch_id = any (p_provider_ids)
$$;

grant create on schema public to palimpsest_background;
alter function want_batches(uuid[], uuid[]) owner to palimpsest_background;
alter function due_batches(integer) owner to palimpsest_background;
alter function known_batches(text[]) owner to palimpsest_background;
revoke create on schema public from palimpsest_background;
revoke execute on function want_batches(uuid[], uuid[]), due_batches(integer), known_batches(text[]) from public;
grant execute on function want_batches(uuid[], uuid[]), due_batches(integer), known_batches(text[])
    to palimpsest_service;
