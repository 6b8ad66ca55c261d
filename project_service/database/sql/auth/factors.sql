-- Factors that are gone, whoever has deleted them.

-- Sessions have not been shown by it any more, which their next access tokens say. Recovery codes stand in for a factor,
-- so they go with the last one that counts.
create or replace function auth.forget_factor() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    update auth.sessions set factor = null, factor_at = null, factor_id = null where factor_id = old.id;
    delete from auth.recovery_codes r where r.user_id = old.user_id
        and not exists (select from auth.mfa_factors f where f.user_id = old.user_id and f.status = 'verified');
    return null;
end $$;

create or replace trigger factor_deleted after delete on auth.mfa_factors
    for each row execute function auth.forget_factor();

revoke execute on function auth.forget_factor from public;
