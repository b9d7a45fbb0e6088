-- One that was broken off is there already and no good.
drop index concurrently if exists ix_gateway_recalls_response;
create index concurrently ix_gateway_recalls_response on gateway_recalls (tenant_id, response_id)
    where response_id is not null;
