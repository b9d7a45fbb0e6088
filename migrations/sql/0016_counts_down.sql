grant create on schema public to palimpsest_background;
alter function due_states(uuid[], boolean) set search_path = pg_catalog, public, pg_temp;
alter function due_states(uuid[], boolean) owner to palimpsest_background;
revoke create on schema public from palimpsest_background;
revoke execute on function due_states(uuid[], boolean) from public;
grant execute on function due_states(uuid[], boolean) to palimpsest_service;
drop function over_by_fixed(integer, integer);
drop function learn_count(integer, integer, real[], real, integer, integer[]);
revoke select (carried_tokens, last_request) on conversations from palimpsest_background;
alter table conversations drop column unstored_tokens, drop column last_count, drop column measured_seq,
    drop column restored_over_budget;
