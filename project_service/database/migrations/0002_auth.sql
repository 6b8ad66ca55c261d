-- Authentication: users, their sessions, and what keeps both honest.
-- Secrets are stored as digests only. Times come from the service's clock, as parameters.

create table auth.users (
    id uuid primary key default gen_random_uuid(),
    email text not null check (octet_length(email) between 3 and 254),
    -- The case-folded address; the service folds it, since lower() depends on the database's locale.
    email_key text not null unique,
    -- A bcrypt hash. Null: nobody can log in with a password.
    password_hash text check (password_hash ~ '^\$2[aby]\$[0-9]{2}\$[./A-Za-z0-9]{53}$'),
    metadata jsonb not null default '{}' check (jsonb_typeof(metadata) = 'object'),
    created_at timestamptz not null default now(),
    confirmed_at timestamptz,
    disabled_at timestamptz,
    last_login_at timestamptz
);
create index users_by_creation on auth.users (created_at, id);

create table auth.sessions (
    id uuid primary key,
    user_id uuid not null references auth.users (id) on delete cascade,
    created_at timestamptz not null,
    refreshed_at timestamptz not null,
    -- Idle lifetime of the refresh token.
    expires_at timestamptz not null,
    -- The last access token of this session ends then.
    access_expires_at timestamptz not null,
    -- Digests of the active refresh token and of its immediate parent.
    current_hash bytea not null,
    previous_hash bytea,
    rotated_at timestamptz not null,
    -- With the parent's text, the active token; wiped when the reuse window has passed.
    salt bytea,
    ended_at timestamptz,
    end_reason text,
    user_agent text not null default '',
    address text not null default ''
);
create index sessions_by_user on auth.sessions (user_id) where ended_at is null;
create index sessions_by_expiry on auth.sessions (expires_at);
create index sessions_with_salt on auth.sessions (id) where salt is not null;

-- Every refresh token a session ever had, so that a late reuse is recognised.
create table auth.refresh_tokens (
    token_hash bytea primary key,
    session_id uuid not null references auth.sessions (id) on delete cascade
);
create index refresh_tokens_by_session on auth.refresh_tokens (session_id);

-- Sessions that ended while an access token of theirs may still be valid: what every worker keeps in memory.
create table auth.revocations (
    session_id uuid primary key,
    expires_at timestamptz not null,
    -- By the database's clock, so that workers can ask for what is new.
    added_at timestamptz not null default clock_timestamp()
);
create index revocations_by_addition on auth.revocations (added_at);

-- However a session ends (logout, theft, deletion of its user, an operator at a prompt), every worker hears of it.
create function auth.revoke_ended_session() returns trigger language plpgsql as $$
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

create trigger session_ended after update of ended_at on auth.sessions
    for each row when (old.ended_at is null and new.ended_at is not null)
    execute function auth.revoke_ended_session();
create trigger session_deleted after delete on auth.sessions
    for each row when (old.ended_at is null)
    execute function auth.revoke_ended_session();

create table auth.one_time_tokens (
    token_hash bytea primary key,
    user_id uuid not null references auth.users (id) on delete cascade,
    purpose text not null check (purpose in ('recovery', 'confirmation')),
    created_at timestamptz not null,
    expires_at timestamptz not null,
    -- A newer token of the same purpose replaces the older one.
    unique (user_id, purpose)
);

-- Attempts per account and per address. An attempt is reserved (pending) before its outcome is known, so that a
-- burst of parallel guesses counts; it then becomes a failure or is taken back.
create table auth.throttle (
    scope text not null,
    subject text not null,
    failed timestamptz[] not null default '{}',
    pending timestamptz[] not null default '{}',
    expires_at timestamptz not null,
    primary key (scope, subject)
);
create index throttle_by_expiry on auth.throttle (expires_at);

-- verdict: 'free' (reserved, mark names it), 'busy' (all that is left is reserved by attempts still running),
-- 'refused' (too many failures; wait_seconds until the oldest that counts leaves the window).
create function auth.reserve_attempt(
    p_scope text, p_subject text, p_max integer, p_window interval, p_now timestamptz,
    out verdict text, out wait_seconds double precision, out mark timestamptz
) language plpgsql as $$
declare
    entry auth.throttle;
    -- An attempt takes seconds: one that is pending longer was abandoned, and counts.
    abandoned constant interval := '1 minute';
begin
    verdict := 'free';
    wait_seconds := 0;
    if p_max <= 0 then
        return;
    end if;
    loop
        insert into auth.throttle (scope, subject, expires_at)
            values (p_scope, p_subject, p_now + p_window + abandoned) on conflict do nothing;
        select * into entry from auth.throttle where scope = p_scope and subject = p_subject for update;
        -- The cleanup may have taken the row in between.
        exit when found;
    end loop;
    entry.failed := array(
        select t from unnest(
            entry.failed || array(select t from unnest(entry.pending) t where t <= p_now - abandoned)
        ) t where t > p_now - p_window order by t);
    entry.pending := array(select t from unnest(entry.pending) t where t > p_now - abandoned order by t);
    if cardinality(entry.failed) >= p_max then
        verdict := 'refused';
        wait_seconds := extract(epoch from
            entry.failed[cardinality(entry.failed) - p_max + 1] + p_window - p_now);
        return;
    end if;
    if cardinality(entry.failed) + cardinality(entry.pending) >= p_max then
        verdict := 'busy';
        return;
    end if;
    -- Marks in one row differ, so that each can be taken back by itself.
    mark := greatest(p_now, entry.pending[cardinality(entry.pending)] + interval '1 microsecond');
    update auth.throttle set
        failed = entry.failed, pending = entry.pending || mark, expires_at = p_now + p_window + abandoned
        where scope = p_scope and subject = p_subject;
end $$;

-- outcome: 'failed' (it counts), 'released' (it never was an attempt), 'cleared' (a success: earlier failures go too).
create function auth.settle_attempt(p_scope text, p_subject text, p_mark timestamptz, p_outcome text)
returns void language sql as $$
    update auth.throttle set
        pending = array_remove(pending, p_mark),
        failed = case p_outcome when 'failed' then failed || p_mark when 'cleared' then '{}' else failed end
    where scope = p_scope and subject = p_subject and p_mark is not null;
$$;

-- Both of a login's counters, the account's always first, so that two logins never wait for each other in a ring.
create function auth.reserve_login(
    p_email text, p_address text, p_max integer, p_max_address integer, p_window interval, p_now timestamptz,
    out verdict text, out wait_seconds double precision, out mark timestamptz, out address_mark timestamptz
) language plpgsql as $$
declare
    account record;
    place record;
begin
    select * into account from auth.reserve_attempt('login', p_email, p_max, p_window, p_now);
    verdict := account.verdict;
    wait_seconds := account.wait_seconds;
    mark := account.mark;
    if verdict <> 'free' then
        return;
    end if;
    select * into place from auth.reserve_attempt('login_address', p_address, p_max_address, p_window, p_now);
    verdict := place.verdict;
    wait_seconds := place.wait_seconds;
    address_mark := place.mark;
    if verdict <> 'free' then
        perform auth.settle_attempt('login', p_email, mark, 'released');
        mark := null;
    end if;
end $$;

create table auth.audit (
    id bigint generated always as identity primary key,
    at timestamptz not null,
    -- Who: anonymous, user, service (the service key) or operator (the command line).
    actor text not null,
    -- About whom. No foreign key: the record outlives the user.
    user_id uuid,
    email text,
    action text not null,
    -- "ok" or the code of the refusal.
    result text not null,
    address text not null default '',
    user_agent text not null default '',
    request_id text not null default ''
);
create index audit_by_time on auth.audit (at);
create index audit_by_user on auth.audit (user_id, at);

-- A new function is everybody's to call unless it is said otherwise.
revoke execute on function
    auth.revoke_ended_session, auth.reserve_attempt, auth.settle_attempt, auth.reserve_login from public;
