-- Block ranges keep the oldest time that was ever in them: once rows stand where others were removed, all of them are looked
-- through for what is old. An index of single times costs an append half a microsecond.
drop index concurrently if exists ix_turn_usages_answered_at;
drop index concurrently if exists ix_idempotency_keys_created_at;
create index concurrently ix_idempotency_keys_created_at on idempotency_keys (created_at);
-- As runs have one: few have died among all that were delivered in a month.
drop index concurrently if exists ix_webhook_deliveries_dead;
create index concurrently ix_webhook_deliveries_dead on webhook_deliveries (tenant_id, id) where state = 'dead';
