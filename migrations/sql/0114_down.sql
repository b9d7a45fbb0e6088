drop function gateway_response;
drop index ix_gateway_recalls_response;
alter table gateway_recalls drop column last_response_id;
alter table gateway_recalls drop column response_id;
