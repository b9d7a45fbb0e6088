-- Erasure. What was said goes; what was done stays, without a word of it: the conversation's row as a tombstone that nobody
-- sees, its runs and steps with their numbers, batches that are on their way until they are canceled. New rows cannot bring
-- any of it back: whoever writes one waits for an erasure that is under way, and meets the triggers below after it.
alter table conversations add column erased_at timestamptz;
alter policy tenant on conversations
    using (tenant_id = nullif(current_setting('app.tenant_id', true), '')::uuid and erased_at is null)
    with check (tenant_id = nullif(current_setting('app.tenant_id', true), '')::uuid and erased_at is null);

-- What is left to tell of an erasure: ids and counts. Each row's proof takes in the one before it (number - 1) of its tenant,
-- so that none can be changed or left out unnoticed.
create table erasures (
    id uuid constraint pk_erasures primary key,
    tenant_id uuid not null constraint fk_erasures_tenant_id_tenants references tenants (id),
    number integer not null,
    conversation_id uuid not null
        constraint fk_erasures_conversation_id_conversations references conversations (id),
    asked_for text not null constraint ck_erasures_asked_for check (asked_for in ('conversation', 'user')),
    key_id uuid,
    request_id uuid,
    message_count integer not null,
    snapshot_count integer not null,
    context_block_count integer not null,
    pin_count integer not null,
    run_count integer not null,
    step_count integer not null,
    batch_count integer not null,
    delivery_count integer not null,
    idempotency_key_count integer not null,
    proof bytea not null,
    erased_at timestamptz not null,
    constraint uq_erasures_conversation_id unique (conversation_id),
    constraint uq_erasures_tenant_id_number unique (tenant_id, number)
);
-- squawk-ignore-file require-concurrent-index-creation -- the table is new and empty
create index ix_erasures_tenant_id_id on erasures (tenant_id, id);
create trigger erasures_immutable before update or delete on erasures
    for each row execute function guard_snapshots();
create trigger erasures_no_truncate before truncate on erasures
    for each statement execute function guard_snapshots();
alter table erasures enable row level security;
alter table erasures force row level security;
create policy tenant on erasures
    using (tenant_id = nullif(current_setting('app.tenant_id', true), '')::uuid)
    with check (tenant_id = nullif(current_setting('app.tenant_id', true), '')::uuid);
create policy background on erasures to palimpsest_background using (true) with check (true);
grant select on erasures to palimpsest_service;
grant select, insert on erasures to palimpsest_background;

-- To remove and to blank, and to know which rows: nothing that was said is among what may be read.
grant select (erased_at) on conversations to palimpsest_background;
grant update (erased_at, external_id, user_ref, model, system, tools, policy, metadata, open_calls, head_version,
              pending_version, covers_through, check_request_id, revision) on conversations to palimpsest_background;
grant select (conversation_id), delete on messages, snapshots, context_blocks, pins, assemblies, idempotency_keys
    to palimpsest_background;
grant select (reason, policy) on runs to palimpsest_background;
grant update (state, reason, error, policy, instructions, block_id, lease_token, lease_expires_at, finished_at)
    on runs to palimpsest_background;
grant update (detail, error) on run_steps to palimpsest_background;
grant update (state, answers, error, canary, fingerprint, reason, attempts, failures, next_attempt_at, finished_at)
    on model_batches to palimpsest_background;
create policy background_erases on messages to palimpsest_background using (true) with check (true);
create policy background_erases on context_blocks to palimpsest_background using (true) with check (true);
create policy background_erases on pins to palimpsest_background using (true) with check (true);
create policy background_erases on assemblies to palimpsest_background using (true) with check (true);
create policy background_erases on run_steps for update to palimpsest_background using (true) with check (true);

-- Messages are append-only: nobody changes one, whatever their privileges, except to mark it superseded, and nobody removes
-- one but the erasure of its conversation.
create or replace function guard_messages() returns trigger language plpgsql as $$
begin
    if tg_op = 'UPDATE' and old.superseded_at is null
        and row(new.tenant_id, new.conversation_id, new.seq, new.role, new.content::text, new.tokens,
                new.view_tokens, new.bytes, new.result_chars, new.is_request, new.has_thinking, new.created_at)
            is not distinct from
            row(old.tenant_id, old.conversation_id, old.seq, old.role, old.content::text, old.tokens,
                old.view_tokens, old.bytes, old.result_chars, old.is_request, old.has_thinking, old.created_at) then
        return new;
    end if;
    if tg_op = 'DELETE' and current_user = 'palimpsest_background'
        and current_setting('palimpsest.erasure', true) = old.conversation_id::text then
        return old;
    end if;
    raise exception 'messages are append-only' using errcode = 'restrict_violation';
end $$;

-- Snapshots are immutable. The exceptions are retention and the erasure of their conversation, which have to say so within
-- their own transaction, as the role that nobody takes on.
create or replace function guard_snapshots() returns trigger language plpgsql as $$
begin
    if tg_op = 'DELETE' and tg_table_name = 'snapshots' and current_user = 'palimpsest_background'
        and (current_setting('palimpsest.retention', true) = 'snapshots'
             or current_setting('palimpsest.erasure', true) = old.conversation_id::text) then
        return old;
    end if;
    raise exception '% is append-only', tg_table_name using errcode = 'restrict_violation';
end $$;

-- The conversation of what is about to be written, as long as it is there: one that is being erased is waited for.
create function is_there(p_conversation uuid) returns boolean language plpgsql as $$
begin
    perform from public.conversations as c where c.id = p_conversation and c.erased_at is null for key share;
    return found;
end $$;

create function guard_erased() returns trigger language plpgsql as $$
begin
    if public.is_there(new.conversation_id) then
        return new;
    end if;
    raise exception 'there is no such conversation' using errcode = 'PL404';
end $$;
create trigger snapshots_not_erased after insert on snapshots for each row execute function guard_erased();
create trigger context_blocks_not_erased after insert on context_blocks for each row execute function guard_erased();
create trigger pins_not_erased after insert on pins for each row execute function guard_erased();

-- Runs and steps that tell what was done, and paid, for an erased conversation may still be written down, but no words.
create function guard_erased_runs() returns trigger language plpgsql as $$
begin
    if public.is_there(new.conversation_id) then
        return new;
    end if;
    if new.state in ('queued', 'running') then
        raise exception 'there is no such conversation' using errcode = 'PL404';
    end if;
    new.error := null;
    new.instructions := null;
    new.policy := '{}';
    return new;
end $$;
create trigger runs_not_erased before insert on runs for each row execute function guard_erased_runs();

-- No lock: whoever writes a step holds its run's, which an erasure takes after the conversation's.
create function guard_erased_steps() returns trigger language plpgsql as $$
begin
    if not exists (select from public.runs as r join public.conversations as c on c.id = r.conversation_id
                   where r.id = new.run_id and c.erased_at is null) then
        new.detail := null;
        new.error := null;
    end if;
    return new;
end $$;
create trigger run_steps_not_erased before insert on run_steps for each row execute function guard_erased_steps();

-- A wish for a batch comes to nothing, so that those for other conversations do not; one on its way keeps no answers.
create function guard_erased_batches() returns trigger language plpgsql as $$
begin
    if tg_op = 'INSERT' then
        if not public.is_there(new.conversation_id)
            and exists (select from public.conversations as c where c.id = new.conversation_id) then
            return null;
        end if;
        return new;
    end if;
    if not exists (select from public.conversations as c where c.id = new.conversation_id and c.erased_at is null) then
        new.answers := null;
        new.error := null;
    end if;
    return new;
end $$;
create trigger model_batches_not_erased before insert or update on model_batches
    for each row execute function guard_erased_batches();

-- A policy without its words.
create function without_words(p_policy jsonb) returns jsonb language sql immutable as $$
    select coalesce(jsonb_object_agg(named.key, named.value), '{}')
    from jsonb_each(p_policy) as named where jsonb_typeof(named.value) in ('number', 'boolean')
$$;

-- Erase a conversation of the tenant that the transaction acts for; the id of its tombstone, null for no such conversation.
-- Once for each: what was erased before is no such conversation either.
create function erase_conversation(p_id uuid, p_conversation uuid, p_asked_for text, p_key uuid, p_request uuid)
returns uuid language plpgsql security definer set search_path = pg_catalog, public as $$
declare
    v_tenant constant uuid := nullif(current_setting('app.tenant_id', true), '')::uuid;
    v_at timestamptz;
    v_number integer;
    v_previous bytea;
    v_messages integer;
    v_snapshots integer;
    v_blocks integer;
    v_pins integer;
    v_runs integer;
    v_steps integer;
    v_batches integer;
    v_deliveries integer;
    v_keys integer;
begin
    -- One after the other within a tenant: each proof needs the one before it.
    perform pg_advisory_xact_lock(hashtextextended('palimpsest.erasures' || v_tenant::text, 0));
    -- The conversation before all that belongs to it, as everywhere: whatever is under way ends first, or finds it gone.
    perform from public.conversations as c
        where c.id = p_conversation and c.tenant_id = v_tenant and c.erased_at is null for update;
    if not found then
        return null;
    end if;
    v_at := clock_timestamp();
    update public.conversations as c
        set erased_at = v_at, external_id = null, user_ref = null, model = null, system = null, tools = null, policy = '{}',
            metadata = '{}', open_calls = '{}', head_version = 0, pending_version = null, covers_through = -1,
            check_due_at = null, check_request_id = null, revision = c.revision + 1
        where c.id = p_conversation;
    update public.runs as r
        set state = case when r.state in ('queued', 'running', 'dead') then 'failed' else r.state end,
            reason = case when r.state in ('queued', 'running') then 'erased' else r.reason end,
            finished_at = case when r.state in ('queued', 'running') then v_at else r.finished_at end,
            error = null, instructions = null, policy = public.without_words(r.policy), block_id = null,
            lease_token = null, lease_expires_at = null
        where r.conversation_id = p_conversation;
    get diagnostics v_runs = row_count;
    update public.run_steps as s set detail = null, error = null
        where s.run_id in (select r.id from public.runs as r where r.conversation_id = p_conversation);
    get diagnostics v_steps = row_count;
    delete from public.webhook_deliveries as d
        where d.run_id in (select r.id from public.runs as r where r.conversation_id = p_conversation);
    get diagnostics v_deliveries = row_count;
    update public.model_batches as b set answers = null, error = null, canary = '', fingerprint = ''
        where b.conversation_id = p_conversation;
    get diagnostics v_batches = row_count;
    -- What the provider has, or may have, is canceled there, and what it has cost is written down.
    update public.model_batches as b
        set state = case when b.state = 'wanted' then 'superseded' else 'canceling' end, reason = 'erased', attempts = 0,
            failures = 0, next_attempt_at = v_at, finished_at = case when b.state = 'wanted' then v_at end
        where b.conversation_id = p_conversation
            and b.state in ('wanted', 'sending', 'submitted', 'canceling', 'ended');
    perform set_config('palimpsest.erasure', p_conversation::text, true);
    delete from public.messages as m where m.conversation_id = p_conversation;
    get diagnostics v_messages = row_count;
    delete from public.snapshots as s where s.conversation_id = p_conversation;
    get diagnostics v_snapshots = row_count;
    perform set_config('palimpsest.erasure', '', true);
    delete from public.context_blocks as b where b.conversation_id = p_conversation;
    get diagnostics v_blocks = row_count;
    delete from public.pins as p where p.conversation_id = p_conversation;
    get diagnostics v_pins = row_count;
    delete from public.idempotency_keys as k where k.conversation_id = p_conversation;
    get diagnostics v_keys = row_count;
    delete from public.assemblies as a where a.conversation_id = p_conversation;

    select e.number, e.proof into v_number, v_previous from public.erasures as e
        where e.tenant_id = v_tenant order by e.number desc limit 1;
    v_number := coalesce(v_number, 0) + 1;
    insert into public.erasures (id, tenant_id, number, conversation_id, asked_for, key_id, request_id, message_count,
                                 snapshot_count, context_block_count, pin_count, run_count, step_count, batch_count,
                                 delivery_count, idempotency_key_count, proof, erased_at)
    values (p_id, v_tenant, v_number, p_conversation, p_asked_for, p_key, p_request, v_messages, v_snapshots, v_blocks,
            v_pins, v_runs, v_steps, v_batches, v_deliveries, v_keys,
            sha256(convert_to(concat_ws('|', coalesce(encode(v_previous, 'hex'), ''), v_number, p_id, v_tenant,
                p_conversation, p_asked_for, coalesce(p_key::text, ''), coalesce(p_request::text, ''),
                to_char(v_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'), v_messages, v_snapshots, v_blocks,
                v_pins, v_runs, v_steps, v_batches, v_deliveries, v_keys), 'UTF8')),
            v_at);
    return p_id;
end $$;

grant create on schema public to palimpsest_background;
alter function erase_conversation(uuid, uuid, text, uuid, uuid) owner to palimpsest_background;
revoke create on schema public from palimpsest_background;
revoke execute on function erase_conversation(uuid, uuid, text, uuid, uuid) from public;
grant execute on function erase_conversation(uuid, uuid, text, uuid, uuid) to palimpsest_service;
