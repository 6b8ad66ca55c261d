-- Users, for a project's own SQL, as /admin/users shows and changes them. Nobody may use any of it until the owner
-- grants it.

create or replace view auth.accounts as
    select id, email, created_at, metadata, disabled_at is not null as disabled,
        confirmed_at is not null as email_confirmed, last_login_at
    from auth.users;
comment on view auth.accounts is 'The users as /admin/users shows them. Later versions may add columns at its end.';

-- Records what the caller has done to a user. Raises PT404 if there is none of that id.
create or replace function auth.record_change(p_user uuid, p_action text) returns void language plpgsql as $$
declare
    -- Of a request to the table API. Elsewhere there are none.
    headers jsonb := coalesce(nullif(current_setting('request.headers', true), ''), '{}');
    request_id text := headers ->> 'x-request-id';
begin
    insert into auth.audit (at, actor, actor_id, user_id, email, action, result, user_agent, request_id)
    select now(),
        case
            when auth.role() = 'service_role' then 'service'
            when auth.role() = 'anon' then 'anonymous'
            when auth.jwt() = '{}' then 'operator'
            else 'user'
        end,
        auth.uid(), u.id, u.email, p_action, 'ok', left(coalesce(headers ->> 'user-agent', ''), 256),
        -- Requests have the id that their client chose if it is of this form.
        case when request_id ~ '^[A-Za-z0-9._-]{1,128}$' then request_id else '' end
    from auth.users u where u.id = p_user;
    if not found then
        raise sqlstate 'PT404' using message = 'There is no such user.';
    end if;
end
$$;

create or replace function auth.set_disabled(user_id uuid, disabled boolean) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    if $2 is null then
        raise null_value_not_allowed using message = 'Whether the user is to be disabled is null.';
    end if;
    -- First the user: from then on no session is started, and the next statement sees all that were.
    update auth.users u
    set disabled_at = case when $2 then coalesce(u.disabled_at, now()) end, disabled_until = null where u.id = $1;
    if $2 then
        update auth.sessions s set ended_at = now(), end_reason = 'disable_user'
        where s.user_id = $1 and s.ended_at is null;
    end if;
    perform auth.record_change($1, case when $2 then 'disable_user' else 'enable_user' end);
end
$$;
comment on function auth.set_disabled(uuid, boolean) is
    'Keeps a user out for good and ends all sessions, or lets the user log in again. PT404 if there is no such user.';

create or replace function auth.end_sessions(user_id uuid) returns integer
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    ended integer;
begin
    update auth.sessions s set ended_at = now(), end_reason = 'end_sessions'
    where s.user_id = $1 and s.ended_at is null;
    get diagnostics ended = row_count;
    perform auth.record_change($1, 'end_sessions');
    return ended;
end
$$;
comment on function auth.end_sessions(uuid) is
    'Ends all sessions of a user and returns their number. PT404 if there is no such user.';

revoke all on auth.accounts from public;
revoke all on function auth.record_change, auth.set_disabled, auth.end_sessions from public;
