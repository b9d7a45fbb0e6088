-- Of a message in another shape whose text stands in its content too, only what is around that text is stored: an array of two
-- texts, of at most 500 bytes. What is larger is a message, whole, and is not decompressed to find that out.
create or replace function as_sent(p_role text, p_content json, p_sent json) returns text language sql stable as $$
    select case
        when p_sent is null then '{"role":"' || p_role || '","content":' || p_content::text || '}'
        when pg_column_size(p_sent) <= 512 and json_typeof(p_sent) = 'array'
            then (p_sent ->> 0) || p_content::text || (p_sent ->> 1)
        else p_sent::text
    end
$$;
