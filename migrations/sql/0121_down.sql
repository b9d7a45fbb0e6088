drop index ix_webhook_deliveries_dead;
drop index ix_idempotency_keys_created_at;
create index ix_idempotency_keys_created_at on idempotency_keys using brin (created_at);
create index ix_turn_usages_answered_at on turn_usages using brin (answered_at);
