-- Passkeys (WebAuthn): keys in a device of the user's. Those of a factor show that factor only; the others sign in.
create table auth.webauthn_credentials (
    id uuid primary key,
    user_id uuid not null references auth.users (id) on delete cascade,
    factor_id uuid unique references auth.mfa_factors (id) on delete cascade,
    credential_id bytea not null unique,
    public_key bytea not null,
    -- What the device says how often it has signed; 0 for those that do not count.
    sign_count bigint not null default 0,
    aaguid uuid,
    transports text[] not null default '{}',
    backed_up boolean not null default false,
    friendly_name text not null default '',
    created_at timestamptz not null default now(),
    updated_at timestamptz not null default now(),
    last_used_at timestamptz
);
create index webauthn_credentials_by_user on auth.webauthn_credentials (user_id);
