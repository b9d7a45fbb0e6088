drop function stands_before(uuid, integer, integer);
