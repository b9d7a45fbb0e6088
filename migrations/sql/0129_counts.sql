-- Whether two counts can have the same tokens beside their histories: of different histories, the larger one is counted
-- larger by no more than twice what it is larger by the estimate.
create function counts_agree(
    p_estimated integer, p_counted integer, p_other_estimated integer, p_other_counted integer
) returns boolean language sql immutable parallel safe
return abs(p_estimated::bigint - p_other_estimated) >= 200
    and (p_counted::bigint - p_other_counted) * sign(p_estimated::bigint - p_other_estimated)
        <= 2 * abs(p_estimated::bigint - p_other_estimated) + 100;
-- Learn from one call: p_counted tokens by the API's count, p_estimated by the estimate. A count is taken for
-- unstored + ratio * estimate, the ratio between 0.5 and 2. What exceeds that is unstored only if three calls with
-- different histories have it alike: counts that are summed over several calls grow faster than their histories do.
-- p_last holds estimate and count of the last two such calls, the newer first. The ratio is the median of the newest five
-- samples; a count that is too large is no sample. 500 tokens are what may surround messages.
create or replace function learn_count(
    p_counted integer, p_estimated integer, p_samples real[], p_ratio real, p_unstored integer, p_last integer[],
    out samples real[], out ratio real, out unstored integer, out last_count integer[]
) language plpgsql immutable as $$
declare
    v_least integer := greatest(0, p_counted - 2 * p_estimated - 500);
    v_most integer := greatest(0, p_counted - p_estimated / 2 + 500);
    v_is_other boolean;
begin
    samples := p_samples;
    ratio := p_ratio;
    unstored := p_unstored;
    if unstored > v_most then
        -- What is sent along is never more than the whole.
        unstored := v_most;
    elsif unstored < v_least and cardinality(p_last) >= 4
        and public.counts_agree(p_estimated, p_counted, p_last[1], p_last[2])
        and public.counts_agree(p_estimated, p_counted, p_last[3], p_last[4])
        and public.counts_agree(p_last[1], p_last[2], p_last[3], p_last[4]) then
        v_least := greatest(v_least, p_last[2] - 2 * p_last[1] - 500, p_last[4] - 2 * p_last[3] - 500);
        v_most := least(v_most, greatest(0, p_last[2] - p_last[1] / 2 + 500), greatest(0, p_last[4] - p_last[3] / 2 + 500));
        if v_least <= v_most then
            unstored := least(v_most, greatest(v_least, round(p_counted - p_ratio * p_estimated)::integer));
        end if;
    end if;
    v_is_other := p_last is null or abs(p_estimated::bigint - p_last[1]) >= 200;
    last_count := case
        when v_is_other then (array[p_estimated, p_counted] || p_last)[:4]
        -- The history is nearly that of the last call: kept is the count that the next ones are held against.
        when abs(p_counted::bigint - p_last[2]) <= 500 then p_last
        else (array[p_estimated, p_counted] || p_last[3:4])[:4] end;
    if p_estimated >= 500 and p_counted <= unstored + 2::bigint * p_estimated + 500 then
        samples := (p_samples || greatest(0.5, least(2, (p_counted - unstored)::real / p_estimated))::real)
                   [greatest(1, cardinality(p_samples) - 3):];
        ratio := (select percentile_cont(0.5) within group (order by each) from unnest(samples) as each);
    end if;
end $$;

-- append_turn_with_entries for messages with times of their own: one for each, null where a message has none.
create function append_turn_at(
    p_times timestamptz[], p_entries jsonb,
    p_tenant uuid, p_conversation uuid, p_request uuid, p_expected_seq integer, p_replace_from integer,
    p_key text, p_body_hash bytea,
    p_messages turn_messages, p_facts turn_facts, p_usage turn_usage, p_context turn_context, p_limits context_limits,
    p_shape text, p_sent json[],
    out outcome text, out first_seq integer, out last_seq integer, out context_tokens integer, out queued boolean
) language plpgsql as $$
begin
    perform set_config('app.message_times', p_times::text, true);
    select a.* into outcome, first_seq, last_seq, context_tokens, queued
    from public.append_turn_with_entries(p_entries, p_tenant, p_conversation, p_request, p_expected_seq, p_replace_from,
                                         p_key, p_body_hash, p_messages, p_facts, p_usage, p_context, p_limits,
                                         p_shape, p_sent) as a;
    -- Turns share transactions.
    perform set_config('app.message_times', '', true);
end $$;

-- When a message was said, where that is not when it was stored, and whether nobody knows.
alter table messages add column said_at timestamptz, add column is_undated boolean;
