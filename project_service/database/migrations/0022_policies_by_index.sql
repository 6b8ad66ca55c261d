-- Listings under policies use indexes as others do.
--
-- PostgreSQL evaluates a restrictive policy before permissive ones, and does not use theirs with an index unless nothing
-- is left of it. So what ``through_the_service`` asks is declared immutable, although it is not: then it is asked while
-- a statement is planned, and costs no row anything. A plan that was made for the service answers true later too, but
-- only the service prepares such statements, on its own connections, and makes the setting first.
create function storage.through_the_service() returns boolean language sql immutable parallel safe as $$
    select coalesce(current_setting('storage.judging', true), '') = 'on'
$$;
revoke all on function storage.through_the_service() from public;
grant execute on function storage.through_the_service() to anon, authenticated;
alter policy through_the_service on storage.objects using (storage.through_the_service());
