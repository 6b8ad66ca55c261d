-- Identities that follow from users, and what users say of their identities.

-- Whoever has an address can sign in by it, unless a provider brought it along. Rows that a project's own SQL makes or
-- changes get the same as those of /auth.
create or replace function auth.keep_email_identity() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    known jsonb := jsonb_build_object('sub', new.id, 'email', new.email, 'email_verified', new.confirmed_at is not null,
                                      'phone_verified', false);
begin
    if new.email is null then
        return null;
    end if;
    if tg_op = 'UPDATE' then
        -- What was sent to the address before is good for nothing any more.
        delete from auth.challenges c where c.user_id = new.id and new.email is distinct from old.email;
        update auth.identities i set identity_data = i.identity_data || known, updated_at = new.updated_at
            where i.user_id = new.id and i.provider = 'email';
        if found or old.email is not null then
            return null;
        end if;
    elsif coalesce(new.raw_app_meta_data ->> 'provider', 'email') <> 'email' then
        return null;
    end if;
    insert into auth.identities (user_id, provider, provider_id, identity_data, last_sign_in_at, created_at, updated_at)
        values (new.id, 'email', new.id::text, known, new.last_login_at, new.updated_at, new.updated_at)
        on conflict do nothing;
    return null;
end $$;

create or replace trigger email_identity_added after insert on auth.users
    for each row execute function auth.keep_email_identity();
create or replace trigger email_identity_changed after update of email, confirmed_at on auth.users
    for each row when ((old.email, old.confirmed_at) is distinct from (new.email, new.confirmed_at))
    execute function auth.keep_email_identity();

-- app_metadata names the providers of a user's identities, the first of them by itself too.
create or replace function auth.name_providers() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    of_user uuid := case when tg_op = 'DELETE' then old.user_id else new.user_id end;
    names text[] := array(select i.provider from auth.identities i where i.user_id = of_user
                          group by i.provider order by min(i.created_at), i.provider);
    named jsonb := case when names = '{}' then '{}'
                        else jsonb_build_object('provider', names[1], 'providers', to_jsonb(names)) end;
begin
    update auth.users u set raw_app_meta_data = u.raw_app_meta_data - 'provider' - 'providers' || named
        where u.id = of_user and u.raw_app_meta_data is distinct from u.raw_app_meta_data - 'provider' - 'providers' || named;
    return null;
end $$;

create or replace trigger providers_named after insert or delete on auth.identities
    for each row execute function auth.name_providers();

revoke execute on function auth.keep_email_identity, auth.name_providers from public;
