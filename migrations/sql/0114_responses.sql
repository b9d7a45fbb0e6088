-- By which name a provider has an answer within which recall was answered. Its client has the id of the first of the provider's
-- answers, and goes on from that (previous_response_id); the provider has the whole of it under the id of the last. Null for
-- answers that have no such ids.
alter table gateway_recalls add column response_id text;
alter table gateway_recalls add column last_response_id text;
-- The planner's statistics would outlive what they quote.
alter table gateway_recalls alter column response_id set statistics 0, alter column last_response_id set statistics 0;

-- What a client's id of an answer stands for at the provider, with the results of calls of recall that it does not have.
create function gateway_response(p_tenant uuid, p_id text, out last_response_id text, out results text)
language plpgsql stable as $$
begin
    perform set_config('app.tenant_id', p_tenant::text, true);
    select r.last_response_id, r.results::text into last_response_id, results from public.gateway_recalls as r
        where r.tenant_id = p_tenant and r.response_id = p_id
        order by r.conversation_id desc, r.seq desc limit 1;
end $$;
