drop function want_batches(uuid[], uuid[]), due_batches(integer), known_batches(text[]);
drop table model_batches;
revoke select (check_request_id) on conversations from palimpsest_background;
