drop function key_in_force(uuid), tenant_of_token(uuid, text), note_key_uses(uuid[], double precision[]);
drop policy background_notes on api_keys;
revoke select (name) on tenants from palimpsest_background;
alter table api_keys drop column last_used_at, drop column replaced_by;
