drop function read_beside_context(uuid, uuid);
