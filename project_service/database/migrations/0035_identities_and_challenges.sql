-- Ways to sign in besides a password: identities, and challenges, which one-time tokens are the first kind of.

-- Anonymous users, and those of providers that tell no address, have none. The table is written anew once.
alter table auth.users
    alter column email drop not null,
    alter column email_key drop not null,
    alter column is_anonymous drop expression,
    add column invited_at timestamptz,
    -- When a user who is disabled may sign in again; null: not before an operator says so.
    add column disabled_until timestamptz,
    drop column banned_until;
alter table auth.users
    alter column is_anonymous set default false,
    alter column is_anonymous set not null,
    add column banned_until timestamptz generated always as
        (case when disabled_at is not null then coalesce(disabled_until, 'infinity') end) stored;
create index users_disabled_until on auth.users (disabled_until) where disabled_until is not null;
create index users_anonymous on auth.users (last_login_at) where is_anonymous;

-- With which further factor the user of a session has been recognised, and when.
alter table auth.sessions
    add column factor text,
    add column factor_at timestamptz,
    add check ((factor is null) = (factor_at is null));

-- A user's ways in: the e-mail address, and accounts with providers. provider_id is what the provider calls the user.
create table auth.identities (
    id uuid primary key default gen_random_uuid(),
    user_id uuid not null references auth.users (id) on delete cascade,
    provider text not null,
    provider_id text not null,
    identity_data jsonb not null default '{}' check (jsonb_typeof(identity_data) = 'object'),
    email text generated always as (lower(identity_data ->> 'email')) stored,
    last_sign_in_at timestamptz,
    created_at timestamptz not null default now(),
    updated_at timestamptz not null default now(),
    unique (provider, provider_id)
);
create index identities_by_user on auth.identities (user_id);
insert into auth.identities (user_id, provider, provider_id, identity_data, last_sign_in_at, created_at, updated_at)
    select id, 'email', id::text,
        jsonb_build_object('sub', id, 'email', email, 'email_verified', confirmed_at is not null, 'phone_verified', false),
        last_login_at, created_at, updated_at
    from auth.users;

-- What is sent or shown, and answered once: a token in a link, a code, a state. Only digests of them are kept, and of a
-- code, which could be guessed, one that needs a key. Of each purpose a user has one at most.
alter table auth.one_time_tokens rename to challenges;
alter table auth.challenges
    drop constraint one_time_tokens_purpose_check,
    alter column user_id drop not null,
    -- Where it was sent.
    add column email_key text,
    add column code_hash bytea,
    -- Wrong codes so far.
    add column tries integer not null default 0,
    -- What its answer goes on with.
    add column data jsonb not null default '{}' check (jsonb_typeof(data) = 'object');
create index challenges_by_address on auth.challenges (email_key) where code_hash is not null;
create index challenges_by_expiry on auth.challenges (expires_at);
