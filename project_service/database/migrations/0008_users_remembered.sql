-- Workers remember for a second the users they have read; however one changes, every host hears of it.
create function auth.tell_changed_user() returns trigger language plpgsql as $$
begin
    -- The end of the id alone, by which changes are counted: however many users one transaction changes, it tells of
    -- 4096 at most.
    perform pg_notify('auth_users', right(old.id::text, 3));
    return null;
end $$;

-- Not after a login, which changes nothing of what is shown.
create trigger user_changed after update of id, email, metadata, created_at, disabled_at on auth.users
    for each row execute function auth.tell_changed_user();
create trigger user_deleted after delete on auth.users
    for each row execute function auth.tell_changed_user();
