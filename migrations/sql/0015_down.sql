drop function read_context(
    uuid, uuid, text, integer, integer, integer, integer, boolean, text, integer, integer, integer);
drop function tail_within(uuid, integer, integer, integer);
