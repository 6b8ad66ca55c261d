-- How sessions end, and how they go on.

-- However a session ends (logout, theft, deletion of its user, an operator at a prompt), every worker hears of it.
create or replace function auth.revoke_ended_session() returns trigger language plpgsql as $$
declare
    until timestamptz := old.access_expires_at;
begin
    if tg_op = 'UPDATE' then
        until := greatest(until, new.access_expires_at);
    end if;
    -- A minute for clocks that differ and for the leeway of verification.
    until := until + interval '1 minute';
    insert into auth.revocations (session_id, expires_at) values (old.id, until) on conflict do nothing;
    perform pg_notify('auth_revocations', old.id || ' ' || ceil(extract(epoch from until)));
    return null;
end $$;

create or replace trigger session_ended after update of ended_at on auth.sessions
    for each row when (old.ended_at is null and new.ended_at is not null)
    execute function auth.revoke_ended_session();
create or replace trigger session_deleted after delete on auth.sessions
    for each row when (old.ended_at is null)
    execute function auth.revoke_ended_session();

-- What becomes of a refresh token: 'rotated' (p_successor is active now), 'repeated' (it was replaced within p_window, or
-- its successor has never been used; salts, by the digests of the tokens that they go with, lead to the active one),
-- 'stolen' (any other use of a token that was replaced; the session has been ended), or null for one that is unknown,
-- expired, of an ended session or of a disabled user.
-- Salts of older tokens are wiped after two windows, not one, since hosts' clocks differ: past one that is missing a repeat
-- would be led to a token that is active no more. A function, because PostgreSQL plans what is in it once a connection.
create or replace function auth.rotate_refresh_token(
    p_digest bytea, p_successor bytea, p_salt bytea, p_now timestamptz, p_window interval, p_expires timestamptz,
    p_access_expires timestamptz, p_address text, p_user_agent text, p_request_id text,
    out outcome text, out session_id uuid, out user_id uuid, out salts json
) language plpgsql as $$
declare
    s auth.sessions;
    replaced auth.refresh_tokens;
begin
    -- Of two at once the second waits here; what follows then sees the rows as the first left them.
    select * into s from auth.sessions x
        where x.id = (select t.session_id from auth.refresh_tokens t where t.token_hash = p_digest) for no key update;
    if s.id is null or s.ended_at is not null or s.expires_at <= p_now
        or exists (select from auth.users u where u.id = s.user_id and u.disabled_at is not null) then
        return;
    end if;
    session_id := s.id;
    user_id := s.user_id;
    if s.current_hash = p_digest then
        outcome := 'rotated';
        if s.salt is not null then
            update auth.refresh_tokens t set salt = s.salt, replaced_at = s.rotated_at
                where t.token_hash = s.previous_hash;
        end if;
        update auth.sessions x set previous_hash = p_digest, current_hash = p_successor, salt = p_salt,
            rotated_at = p_now, refreshed_at = p_now, expires_at = p_expires, address = p_address,
            access_expires_at = greatest(x.access_expires_at, p_access_expires) where x.id = s.id;
        insert into auth.refresh_tokens (token_hash, session_id, issued_at) values (p_successor, s.id, p_now);
        return;
    end if;
    select * into replaced from auth.refresh_tokens t where t.token_hash = p_digest;
    if s.previous_hash = p_digest and s.salt is not null
        or replaced.salt is not null and replaced.replaced_at > p_now - p_window then
        outcome := 'repeated';
        if s.previous_hash = p_digest and s.rotated_at <= p_now - p_window then
            -- The answer is given again, as if the token were replaced only now: its window begins anew for other tabs,
            -- and the session has been used.
            update auth.sessions x set rotated_at = p_now, refreshed_at = p_now, address = p_address,
                expires_at = greatest(x.expires_at, p_expires) where x.id = s.id;
        end if;
        update auth.sessions x set access_expires_at = greatest(x.access_expires_at, p_access_expires) where x.id = s.id;
        -- Those of more than two windows ago lead nowhere.
        salts := (select json_object_agg(encode(hash, 'hex'), encode(known.salt, 'hex')) from (
            select s.previous_hash, s.salt
            union all select t.token_hash, t.salt from auth.refresh_tokens t
                where t.session_id = s.id and t.replaced_at > p_now - 2 * p_window) known (hash, salt)
            where known.salt is not null);
        return;
    end if;
    outcome := 'stolen';
    update auth.sessions x set ended_at = p_now, end_reason = 'refresh_token_reused' where x.id = s.id;
    insert into auth.audit (at, actor, user_id, email, action, result, address, user_agent, request_id)
        select p_now, 'anonymous', u.id, u.email, 'refresh', 'refresh_token_reused', p_address, p_user_agent,
            p_request_id from auth.users u where u.id = s.user_id;
end $$;

revoke execute on function auth.revoke_ended_session, auth.rotate_refresh_token from public;
