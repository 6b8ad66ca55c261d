-- What projects of the Supabase family refer to in SQL: triggers on auth.users, views, foreign keys, reports.

-- raw_app_meta_data is what only operators change; it is in access tokens. The others that are not generated say when.
-- Generated ones follow from columns of ours, or say what every user here is. The table is written anew once.
alter table auth.users
    add column raw_app_meta_data jsonb not null default '{"provider": "email", "providers": ["email"]}'
        check (jsonb_typeof(raw_app_meta_data) = 'object'),
    add column updated_at timestamptz not null default now(),
    add column raw_user_meta_data jsonb generated always as (metadata) stored,
    -- Whoever could log in without confirming the address counts as confirmed to these projects.
    add column email_confirmed_at timestamptz generated always as
        (coalesce(confirmed_at, case when last_login_at is not null then created_at end)) stored,
    add column last_sign_in_at timestamptz generated always as (last_login_at) stored,
    add column banned_until timestamptz
        generated always as (case when disabled_at is not null then timestamptz 'infinity' end) stored,
    add column aud text generated always as ('authenticated') stored,
    add column role text generated always as ('authenticated') stored,
    add column phone text generated always as (null::text) stored,
    add column is_anonymous boolean generated always as (false) stored;

-- How the session began, which its access tokens say (claim amr).
alter table auth.sessions add column method text not null default 'password';
