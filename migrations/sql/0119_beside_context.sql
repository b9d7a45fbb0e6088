-- What of a conversation's row a payload is made from besides its context, in one statement: the setting and the look-up.
create function read_beside_context(
    p_tenant uuid, p_conversation uuid, out id uuid, out system text, out tools text, out policy text, out model text,
    out shape text, out last_request integer, out in_loop boolean, out loop_has_thinking boolean, out fixed_tokens integer,
    out unstored_tokens integer, out carried_tokens integer, out turn_context_tokens integer
)
language plpgsql stable as $$
begin
    -- Called by itself, so that the setting ends with this statement's transaction.
    perform set_config('app.tenant_id', p_tenant::text, true);
    select c.id, c.system::text, c.tools::text, c.policy::text, c.model, c.shape, c.last_request, c.in_loop,
           c.loop_has_thinking, c.fixed_tokens, c.unstored_tokens, c.carried_tokens, c.turn_context_tokens
    into id, system, tools, policy, model, shape, last_request, in_loop, loop_has_thinking, fixed_tokens, unstored_tokens,
         carried_tokens, turn_context_tokens
    from public.conversations as c where c.id = p_conversation and c.tenant_id = p_tenant;
end $$;
