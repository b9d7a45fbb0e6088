-- Message batches that are over, by the time at which they were made. What they cost is on the steps of runs.
grant select (finished_at), delete on model_batches to palimpsest_background;

create function expire_batches(p_seconds double precision, p_limit integer) returns integer
language plpgsql security definer set search_path = pg_catalog, public as $$
declare
    v_before constant timestamptz := now() - make_interval(secs => p_seconds);
    v_removed integer;
begin
    delete from public.model_batches as b
        where b.id = any (array(
            select o.id from public.model_batches as o
            where o.id < public.first_id_at(v_before) and o.finished_at < v_before
                and o.state not in ('wanted', 'sending', 'submitted', 'canceling', 'ended')
            order by o.id limit p_limit for update skip locked));
    get diagnostics v_removed = row_count;
    return v_removed;
end $$;

grant create on schema public to palimpsest_background;
alter function expire_batches(double precision, integer) owner to palimpsest_background;
revoke create on schema public from palimpsest_background;
revoke execute on function expire_batches(double precision, integer) from public;
grant execute on function expire_batches(double precision, integer) to palimpsest_service;
