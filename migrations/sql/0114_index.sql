create index concurrently if not exists ix_gateway_recalls_response on gateway_recalls (tenant_id, response_id)
    where response_id is not null;
