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
