drop function expire_batches(double precision, integer);
revoke select (finished_at), delete on model_batches from palimpsest_background;
