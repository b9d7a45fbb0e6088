-- For the metrics: what waits beside checks, over all tenants, as numbers. `checks` and `summaries` are queued runs by their
-- queue; `budget` are summaries that wait for another day's budget and `overdue` those of them whose day has come;
-- `webhooks` are deliveries and `batches` message batches that are due. Each count reads the partial index of what is open.
create function waiting_work() returns table (kind text, waiting bigint, oldest_seconds double precision)
language sql stable security definer set search_path = pg_catalog, public as $$
    with waits (kind, since) as (
        select r.queue, r.queued_at from public.runs as r where r.state = 'queued'
        union all
        select 'budget', w.created_at from public.waiting_summaries as w where w.done_at is null
        union all
        select 'overdue', w.not_before from public.waiting_summaries as w
            where w.done_at is null and w.not_before <= now()
        union all
        select 'webhooks', d.next_attempt_at from public.webhook_deliveries as d
            where d.state = 'pending' and d.next_attempt_at <= now()
        union all
        select 'batches', b.next_attempt_at from public.model_batches as b
            where b.state in ('wanted', 'sending', 'submitted', 'canceling', 'ended')
                and b.next_attempt_at <= now()
    )
    select k.kind, count(w.kind), greatest(0, coalesce(extract(epoch from now() - min(w.since)), 0))::float8
    from unnest(array['checks', 'summaries', 'budget', 'overdue', 'webhooks', 'batches']) as k (kind)
        left join waits as w on w.kind = k.kind
    group by k.kind
$$;

-- For the metrics: what models have been asked since the first day, over all tenants. One row a tenant and day is read.
create function model_totals() returns table (
    model_calls bigint, input_tokens bigint, output_tokens bigint, cost_usd numeric
) language sql stable security definer set search_path = pg_catalog, public as $$
    select coalesce(sum(u.model_calls), 0)::bigint, coalesce(sum(u.input_tokens), 0)::bigint,
           coalesce(sum(u.output_tokens), 0)::bigint, coalesce(sum(u.cost_usd), 0)
    from public.model_usage as u
$$;

grant create on schema public to palimpsest_background;
alter function waiting_work() owner to palimpsest_background;
alter function model_totals() owner to palimpsest_background;
revoke create on schema public from palimpsest_background;
revoke execute on function waiting_work(), model_totals() from public;
grant execute on function waiting_work(), model_totals() to palimpsest_service;
