-- Further factors: what besides the way in shows who somebody is.

-- What SQL may read of them; secrets are in a table of their own.
create table auth.mfa_factors (
    id uuid primary key,
    user_id uuid not null references auth.users (id) on delete cascade,
    friendly_name text not null default '',
    factor_type text not null check (factor_type in ('totp', 'webauthn')),
    -- Counts once it has been used.
    status text not null default 'unverified' check (status in ('unverified', 'verified')),
    created_at timestamptz not null default now(),
    updated_at timestamptz not null default now(),
    last_challenged_at timestamptz,
    unique (user_id, friendly_name)
);

-- What codes by time (RFC 6238) are made from, and the last time step whose code was used.
create table auth.totp_secrets (
    factor_id uuid primary key references auth.mfa_factors (id) on delete cascade,
    secret bytea not null,
    used_step bigint not null default -1
);

-- In place of a code, once. Only digests are kept.
create table auth.recovery_codes (
    user_id uuid not null references auth.users (id) on delete cascade,
    digest bytea not null,
    created_at timestamptz not null default now(),
    primary key (user_id, digest)
);

-- Which factor it was.
alter table auth.sessions add column factor_id uuid;
create index sessions_by_factor on auth.sessions (factor_id) where factor_id is not null;
