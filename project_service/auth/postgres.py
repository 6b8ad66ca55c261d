"""Authentication's tables in PostgreSQL: ``Repository``, and above it its queries.

The logic of counters and of refresh tokens is in functions of the database (``database/sql/auth``).
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime, timedelta
from typing import Any, Literal, TypeVar

from attrs import evolve, frozen
from psycopg2.errors import ForeignKeyViolation, NotNullViolation, RestrictViolation, UniqueViolation

from project_service import audit
from project_service.audit import AUDIT, RECORD, Event, Origin
from project_service.auth import errors
from project_service.auth.values import (
    ANSWERED,
    APP_METADATA,
    FOR_PASSWORDS,
    MAX_LISTED_SESSIONS,
    MAX_TRIES,
    OF_CHANGE,
    Account,
    Answer,
    AuthCode,
    ByProvider,
    Credential,
    Email,
    Factor,
    FactorProof,
    FactorType,
    Identity,
    Limit,
    Method,
    NewChallenge,
    NewSession,
    Outcome,
    OwnFactor,
    Passkey,
    Profile,
    Proof,
    Purpose,
    Raised,
    Redeemed,
    Reservation,
    Rotation,
    SessionInfo,
    SignIn,
    User,
    email_of,
    load_metadata,
    takes_over,
)
from project_service.database.acting import Actor
from project_service.database.connection import Row
from project_service.database.listener import Listener
from project_service.database.locks import AUTH_UPKEEP
from project_service.database.pool import Pool, Transaction
from project_service.errors import overloaded, session_revoked

T = TypeVar("T")
Change = Literal["insert", "update", "delete"]

# The columns that ``account_of`` and ``_user`` take, from a table or a subquery called u.
USER = """u.id::text, coalesce(u.email, ''), u.created_at, u.metadata::text, u.raw_app_meta_data::text, u.updated_at,
    u.confirmed_at, u.last_login_at, u.is_anonymous"""
USER_COLUMNS = 9
ACCOUNT = f"{USER}, u.password_hash, u.disabled_at, u.disabled_until"
ACCOUNT_COLUMNS = USER_COLUMNS + 3
# Those of ``_factor``, from a table called f, and those of ``_profile``.
FACTOR = """f.id::text, f.user_id::text, f.friendly_name, f.factor_type, f.status = 'verified', f.created_at,
    f.updated_at"""
IDENTITIES = """select json_agg(json_build_array(i.id, i.user_id, i.provider, i.provider_id, i.identity_data,
        i.last_sign_in_at, i.created_at, i.updated_at) order by i.created_at, i.provider)::text
        from auth.identities i"""
PROFILE = f"""{ACCOUNT},
    ({IDENTITIES} where i.user_id = u.id),
    (select json_agg(json_build_array({FACTOR}) order by f.created_at, f.id)::text
        from auth.mfa_factors f where f.user_id = u.id),
    (select json_object_agg(c.purpose, c.created_at)::text from auth.challenges c where c.user_id = u.id),
    (select max(c.data ->> 'email') from auth.challenges c
        where c.user_id = u.id and c.purpose in ('email_change', 'email_change_current')),
    u.invited_at"""

# CTEs, to follow one called u that has the user's id, which insert a session and its first refresh token.
ADD_SESSION = """s as (
    insert into auth.sessions (id, user_id, created_at, refreshed_at, rotated_at, expires_at,
        access_expires_at, current_hash, user_agent, address, method, factor, factor_at)
    select %(sid)s::uuid, u.id, %(started)s, %(started)s, %(started)s, %(expires)s, %(access_expires)s,
        %(digest)s::bytea, %(user_agent)s, %(address)s, %(method)s, %(factor)s, %(factor_at)s
    from u where %(sid)s is not null
    returning id, current_hash, created_at),
t as (insert into auth.refresh_tokens (token_hash, session_id, issued_at)
    select current_hash, id, created_at from s)"""


# Users.

_OK_OR_TAKEN = "case when exists (select from u) then 'ok' else 'email_taken' end"
# A new user, with a first session if there is one; no row if the address is taken.
_CREATE = f"""
with u as (
    insert into auth.users
        (id, email, email_key, password_hash, metadata, raw_app_meta_data, created_at, updated_at, confirmed_at,
         last_login_at, is_anonymous, invited_at)
    values (coalesce(%(id)s::uuid, gen_random_uuid()), %(email)s, %(email_key)s, %(hash)s, %(metadata)s::jsonb,
        %(app_metadata)s::jsonb, %(at)s, %(at)s, case when %(confirmed)s then %(at)s::timestamptz end, %(started)s,
        %(anonymous)s, case when %(invited)s then %(at)s::timestamptz end)
    on conflict (email_key) do nothing
    returning *),
{ADD_SESSION},
a as ({AUDIT.format(user_id="(select id from u)", result=_OK_OR_TAKEN)})
select {ACCOUNT} from u
"""
# The queries that read one user are run often. So they are prepared, with ``%s`` for their parameter.
_FIND = f"select {ACCOUNT} from auth.users u where id = %s::uuid"
_FIND_PROFILE = f"select {PROFILE} from auth.users u where id = %s::uuid"
_FIND_BY_EMAIL = f"select {ACCOUNT} from auth.users u where email_key = %s"
# Users in the order in which they were created, after a given one.
_PAGE = f"""
select {ACCOUNT} from auth.users u
where %(after)s is null or (created_at, id) > (%(after)s::timestamptz, %(after_id)s::uuid)
order by created_at, id limit %(limit)s
"""
# Users from the newest on, each with how many there are; without any, a row that has only that.
_PAGE_FROM = f"""
with page as (select * from auth.users order by created_at desc, id desc limit %(limit)s offset %(offset)s)
select total.n, {PROFILE} from (select count(*) from auth.users) total (n) left join page u on true
order by u.created_at desc, u.id desc
"""
_SET_METADATA = f"""
with u as (
    update auth.users set metadata = %(metadata)s::jsonb, updated_at = %(at)s where id = %(id)s::uuid returning *),
a as ({RECORD} from u)
select {ACCOUNT} from u
"""
# Nobody else changes the user until the transaction ends.
_FIND_AND_LOCK = f"select {ACCOUNT} from auth.users u where id = %(id)s::uuid for no key update"
_REVISE = f"""
with u as (
    update auth.users set metadata = %(metadata)s::jsonb, raw_app_meta_data = %(app_metadata)s::jsonb,
        confirmed_at = %(confirmed_at)s, updated_at = %(at)s
    where id = %(id)s::uuid returning *),
a as ({RECORD} from u)
select {ACCOUNT} from u
"""

# Nothing that was sent to a user, or kept for a client of theirs, is good for anything any more.
_FORGET = """delete from auth.challenges where (user_id = %(id)s::uuid
    or user_id is null and purpose = 'pkce' and data ->> 'user' = %(id)s)"""
# Each statement of a message has a snapshot of its own. So the later ones see all sessions that were started before
# the first statement locked the user's row.
_END_SESSIONS = """update auth.sessions set ended_at = %(at)s, end_reason = %(action)s
    where user_id = %(id)s::uuid and ended_at is null and (%(keep)s is null or id <> %(keep)s::uuid)"""
# If there are two changes at once, the second waits for the user's row, and its proof is checked against what the
# first has made of it.
_PROVEN = """(%(known_hash)s is null or coalesce(password_hash, '') = %(known_hash)s and disabled_at is null
        and not exists (select from auth.sessions where id = %(keep)s::uuid and ended_at is not null))"""
# Hashes are salted, so this cannot be true because of somebody else's change.
_IS_SET = "exists (select from auth.users where id = %(id)s::uuid and password_hash = %(hash)s)"
# A new password ends the other sessions, and guesses at the old one do not count any more. Of what was sent only that
# stays by which a new user confirms the address: whoever knew the old password may have begun the rest.
_SET_PASSWORD = f"""
update auth.users set password_hash = %(hash)s, updated_at = %(at)s where id = %(id)s::uuid and {_PROVEN};
{_END_SESSIONS} and {_IS_SET} and not %(keep_sessions)s;
{_FORGET} and purpose not in ('confirmation', 'invitation') and {_IS_SET};
update auth.throttle set failed = '{{}}'
    where scope = 'login' and subject = (select email_key from auth.users where id = %(id)s::uuid) and {_IS_SET};
{RECORD} where {_IS_SET};
select {ACCOUNT} from auth.users u where id = %(id)s::uuid and password_hash = %(hash)s
"""
# A disabled user has no sessions.
_DISABLE = f"""
update auth.users set disabled_at = coalesce(disabled_at, %(at)s), disabled_until = %(until)s, updated_at = %(at)s
    where id = %(id)s::uuid;
{_END_SESSIONS};
{RECORD} where exists (select from auth.users where id = %(id)s::uuid);
select {ACCOUNT} from auth.users u where id = %(id)s::uuid
"""
_ENABLE = f"""
with u as (
    update auth.users set disabled_at = null, disabled_until = null, updated_at = %(at)s where id = %(id)s::uuid
    returning *),
a as ({RECORD} from u)
select {ACCOUNT} from u
"""
# Somebody anonymous who has had no session for long.
_UNUSED = """is_anonymous and (last_login_at < %(before)s or last_login_at is null and created_at < %(before)s)
    and not exists (select from auth.sessions s
        where s.user_id = u.id and s.ended_at is null and s.refreshed_at >= %(before)s)"""
# Deletes a user; sessions and tokens go too, and the workers are notified.
_DELETE = f"""
with u as (
    delete from auth.users u where id = %(id)s::uuid and {_PROVEN} and (%(before)s is null or {_UNUSED})
    returning id),
a as ({RECORD} from u)
select id::text from u
"""


# Sessions and their refresh tokens.

# Starts a session for a user whose password was right. The user's row is locked first, so a change of password, or a
# disabling, at the same time is safe: it ends a session that was started before it, and none is started after it.
_START = f"""
with u as (
    update auth.users set last_login_at = %(started)s, updated_at = %(started)s,
        password_hash = coalesce(%(new_hash)s, password_hash)
    where id = %(id)s::uuid and password_hash = %(old_hash)s and disabled_at is null
    returning *),
{ADD_SESSION},
a as ({RECORD} from u)
select {USER} from u
"""

# Exchanges a refresh token: rotates, repeats or revokes (see the function in ``sessions.sql``).
_ROTATE = f"""
select {USER}, r.session_id::text, r.outcome, r.salts::text, s.created_at, s.method, s.factor, s.factor_at
from auth.rotate_refresh_token(%(digest)s, %(successor)s, %(salt)s, %(now)s, %(reuse_window)s, %(expires)s,
    %(access_expires)s, %(address)s, %(user_agent)s, %(request_id)s) r
join auth.users u on u.id = r.user_id
join auth.sessions s on s.id = r.session_id
"""

# The newest active sessions of a user, the newest first.
_LIST = """
select id::text, created_at, refreshed_at, expires_at, user_agent, address from auth.sessions
where user_id = %(user_id)s::uuid and ended_at is null and expires_at > %(now)s
order by created_at desc, id limit %(maximum)s
"""

# Ends sessions of a user; a trigger notifies every worker.
_END = f"""
with ended as (
    update auth.sessions set ended_at = %(at)s, end_reason = %(action)s
    where user_id = %(user_id)s::uuid and ended_at is null
        and (%(only)s is null or id = %(only)s::uuid) and (%(but)s is null or id <> %(but)s::uuid)
    returning id, access_expires_at),
a as ({RECORD})
select id::text, extract(epoch from access_expires_at + interval '1 minute')::float8 from ended
"""

# Ended sessions whose access tokens may still be valid.
_ENDED = """
select session_id::text, extract(epoch from expires_at)::float8 from auth.revocations
where expires_at > %(now)s and (%(since)s is null or added_at > %(since)s)
"""


# Counters of attempts.

_RESERVE = """
select verdict, wait_seconds, mark
from auth.reserve_attempt(%(scope)s, %(subject)s, %(maximum)s, %(window)s, %(now)s)
"""
_FINISH = "select auth.settle_attempt(%(scope)s, %(subject)s, %(mark)s, %(outcome)s)"
# Reserves a login under both limits, and reads the account in the same round trip.
_RESERVE_LOGIN = f"""
select r.verdict, r.wait_seconds, r.mark, r.address_mark, {ACCOUNT}
from auth.reserve_login(%(email)s, %(address)s, %(maximum)s, %(address_maximum)s, %(window)s, %(now)s) r
left join auth.users u on u.email_key = %(email)s
"""
# The outcome of a login, in both counters.
_FINISH_LOGIN = """
select auth.settle_attempt(%(scope)s, %(subject)s, %(mark)s, %(outcome)s),
    auth.settle_attempt('login_address', %(subject_address)s, %(address_mark)s, %(address_outcome)s)
"""
# Forgets the attempts at the password of an account, at the login and in its sessions.
_UNLOCK = f"""
update auth.throttle set failed = '{{}}', pending = '{{}}'
    where (scope, subject) in (
        select 'login', email_key from auth.users where id = %(id)s::uuid
        union all select 'session', id::text from auth.sessions where user_id = %(id)s::uuid);
{RECORD}
"""


# Challenges: what is sent or shown, and answered once.

# A challenge for the user of an address or an id, if there is one. An entry of the audit is written for an unknown
# address too, so that both responses take the time of a commit. Without the lock a user who is being deleted would be
# seen, and the challenge would violate its foreign key; a weaker one could deadlock with a change of address.
# The hash of a code is bound to its token, since 0.1.0, which has no codes, replaces only the token.
_ISSUE = f"""
with u as (
    select *, case when confirmed_at is null then %(purpose)s else %(if_confirmed)s end as due
    from auth.users
    where (%(user)s is null and email_key = %(email_key)s or id = %(user)s::uuid) and disabled_at is null
    for no key update),
t as (
    insert into auth.challenges as known
        (token_hash, user_id, purpose, created_at, expires_at, email_key, code_hash, data)
    select %(digest)s, id, due, %(at)s, %(expires)s, %(email_key)s, sha256(%(digest)s::bytea || %(code_hash)s),
            %(data)s::jsonb
        from u where due is not null
    on conflict (user_id, purpose) do update set
        token_hash = excluded.token_hash, created_at = excluded.created_at, expires_at = excluded.expires_at,
        email_key = excluded.email_key, code_hash = excluded.code_hash, tries = 0,
        data = excluded.data
            || case when known.data ? 'takes_over' then '{{"takes_over": true}}'::jsonb else '{{}}' end
        where known.created_at <= %(at)s - %(pause)s
            or known.data ->> 'email_key' is distinct from excluded.data ->> 'email_key'
    returning user_id, purpose),
a as ({AUDIT.format(user_id="(select id from u)", result="%(result)s")})
select {USER}, t.purpose from u join t on t.user_id = u.id
"""
# Before _ISSUE, for one that takes an account over: so does the challenge that is there, if it is too young to be
# replaced. Whoever asked for that one may be somebody else.
_LET_TAKE_OVER = """
select from auth.users where email_key = %(email_key)s for no key update;
update auth.challenges set data = data || '{"takes_over": true}' where purpose = %(purpose)s
    and user_id = (select id from auth.users where email_key = %(email_key)s and disabled_at is null);
"""
_OWNER = f"""
select {USER} from auth.challenges t join auth.users u on u.id = t.user_id
where t.token_hash = %(digest)s and t.purpose = any(%(purposes)s) and t.expires_at > %(now)s
"""
_PENDING = """
select user_id::text, data::text from auth.challenges
where purpose = any(%(purposes)s) and expires_at > %(now)s
    and (token_hash = %(digest)s
        or %(digest)s is null and email_key = %(email_key)s and code_hash is not null)
"""
# What an answer may be for. The users' rows are locked before those of challenges, as everywhere else, to avoid
# deadlocks.
_ANSWERABLE = f"""purpose = any(%(purposes)s) and expires_at > %(now)s
    and (%(user)s is null or user_id = %(user)s::uuid)
    and (token_hash = %(digest)s
        or %(digest)s is null and email_key = %(email_key)s and code_hash is not null and tries < {MAX_TRIES})"""
_LOCK_OWNERS = f"""
select from auth.users where id in (select user_id from auth.challenges where {_ANSWERABLE}) order by id
for no key update
"""
# Uses a challenge up; of two answers at once only one gets it, because they wait for the user's row. A wrong code
# counts as a try of each that it could have been for.
_ANSWER = f"""
with asked as (select * from auth.challenges where {_ANSWERABLE}),
met as (
    select token_hash from asked
    where %(digest)s is not null
        or code_hash in (select sha256(token_hash || h) from unnest(%(code_hashes)s::bytea[]) h)
    order by array_position(%(purposes)s, purpose) limit 1),
answered as (
    delete from auth.challenges where token_hash in (select token_hash from met)
    returning purpose, user_id, data),
missed as (
    update auth.challenges set tries = tries + 1
    where token_hash in (select token_hash from asked) and not exists (select from met))
select purpose, user_id::text, data::text from answered
"""
# Somebody has shown to be the user. ``proven`` says that it was by the address, which is confirmed then.
_ENTER = f"""
with u as (
    update auth.users set updated_at = %(at)s, last_login_at = coalesce(%(started)s, last_login_at),
        confirmed_at = case when %(proven)s then coalesce(confirmed_at, %(at)s) else confirmed_at end
    where id = %(id)s::uuid and disabled_at is null returning *),
{ADD_SESSION},
a as (insert into auth.audit (at, actor, user_id, email, action, result, address, user_agent, request_id)
    select %(at)s, %(actor)s, id, email, %(action)s, %(result)s, %(address)s, %(user_agent)s, %(request_id)s from u)
select {USER} from u
"""
_LOCK_EXCHANGER = """
select from auth.users where id = (
    select (data ->> 'user')::uuid from auth.challenges where token_hash = %(digest)s and purpose = 'pkce')
for no key update
"""
_EXCHANGE = """
with known as (
    select * from auth.challenges where token_hash = %(digest)s and purpose = 'pkce' and expires_at > %(now)s for
    update),
taken as (
    delete from auth.challenges where token_hash in (
        select token_hash from known where data ->> 'code_challenge' = any(%(challenges)s)) returning data)
select (select data::text from taken) from known
"""
# One of two addresses has confirmed a change to a new one, and not to any other.
_CONFIRM_HALF = """
update auth.challenges set data = data || '{"half": true}'
where user_id = %(id)s::uuid and purpose = %(other)s and expires_at > %(now)s and data ->> 'email_key' = %(email_key)s
"""
# What was sent to the address before is good for nothing any more.
_CHANGE_EMAIL = f"""
{_FORGET};
with u as (
    update auth.users set email = %(email)s, email_key = %(email_key)s, is_anonymous = false, confirmed_at = %(at)s,
        updated_at = %(at)s
    where id = %(id)s::uuid returning *)
select {USER} from u
"""
# The user is locked first, as everywhere else, so that a challenge that is issued meanwhile is seen.
_SET_EMAIL = f"""
select from auth.users where id = %(id)s::uuid for update;
{_FORGET};
with u as (
    update auth.users set email = %(email)s, email_key = %(email_key)s, is_anonymous = false, confirmed_at = null,
        updated_at = %(at)s
    where id = %(id)s::uuid returning *),
a as ({RECORD} from u)
select {ACCOUNT} from u
"""
# Somebody has shown whose the address is. Who had signed up with it before had not, so nothing of theirs stays that
# lets them in.
_VOID_UNPROVEN = f"""
update auth.users set password_hash = null where id = %(id)s::uuid;
update auth.sessions set ended_at = %(at)s, end_reason = 'address_proven'
    where user_id = %(id)s::uuid and ended_at is null;
{_FORGET}
"""
# By an e-mail: then the address is a way in, if it was none before (``identities.sql`` adds what it says). Factors
# stay, since nobody gets in by them alone, and whoever reads somebody's e-mails must not get past theirs.
_VOID_OTHER_WAYS = """
delete from auth.webauthn_credentials where user_id = %(id)s::uuid and factor_id is null;
insert into auth.identities (user_id, provider, provider_id, created_at, updated_at)
    values (%(id)s::uuid, 'email', %(id)s, %(at)s, %(at)s) on conflict do nothing;
delete from auth.identities where user_id = %(id)s::uuid and provider <> 'email'
"""
_VOID = f"{_VOID_UNPROVEN};{_VOID_OTHER_WAYS}"
# A new password by e-mail ends all sessions and other challenges.
_RESET = f"""
update auth.users set password_hash = %(hash)s, confirmed_at = coalesce(confirmed_at, %(at)s), updated_at = %(at)s
    where id = %(id)s::uuid;
update auth.sessions set ended_at = %(at)s, end_reason = %(action)s
    where user_id = %(id)s::uuid and ended_at is null;
{_FORGET};
update auth.throttle set failed = '{{}}'
    where scope = 'login' and subject = (select email_key from auth.users where id = %(id)s::uuid);
{RECORD}
"""


# Further factors. The user's row is locked first, so that what ends by one change is seen by the next.

# The columns of ``_credential``, from a table called c.
CREDENTIAL = "c.credential_id, c.public_key, c.sign_count, c.aaguid::text, c.transports, c.backed_up"
# A counter that has not gone up may be that of a copy. Devices that do not count say 0 always.
_GOES_UP = "(sign_count < %(count)s or sign_count = 0 and %(count)s = 0)"
_COUNTED = "sign_count = %(count)s, last_used_at = %(at)s, updated_at = %(at)s"
_LOCK_ACTIVE = "select 1 from auth.users where id = %(user)s::uuid and disabled_at is null for no key update"
# Whoever has begun to enrol a factor and has not gone on enrols it anew.
_ENROL = f"""
delete from auth.mfa_factors
    where user_id = %(user)s::uuid and status = 'unverified' and created_at <= %(stale)s;
with f as (
    insert into auth.mfa_factors (id, user_id, friendly_name, factor_type, created_at, updated_at)
    select %(factor)s::uuid, %(user)s::uuid, %(name)s, %(type)s, %(at)s, %(at)s
    where (select count(*) from auth.mfa_factors where user_id = %(user)s::uuid) < %(maximum)s
        or exists (select from auth.mfa_factors where user_id = %(user)s::uuid and friendly_name = %(name)s)
    on conflict (user_id, friendly_name) do nothing
    returning id),
s as (insert into auth.totp_secrets (factor_id, secret) select id, %(secret)s from f where %(secret)s is not null),
a as ({RECORD} from f)
select (select count(*) from f),
    exists (select from auth.mfa_factors where user_id = %(user)s::uuid and friendly_name = %(name)s)
"""
_OWN_FACTOR = "f.id = %(factor)s::uuid and f.user_id = %(user)s::uuid"
_FIND_FACTOR = f"""
select f.factor_type, f.status = 'verified', t.secret, {CREDENTIAL} from auth.mfa_factors f
left join auth.totp_secrets t on t.factor_id = f.id
left join auth.webauthn_credentials c on c.factor_id = f.id
where {_OWN_FACTOR}
"""
_CHALLENGE_FACTOR = f"""
with f as (
    update auth.mfa_factors f set last_challenged_at = %(at)s where {_OWN_FACTOR} returning f.factor_type),
c as (
    insert into auth.challenges (token_hash, purpose, created_at, expires_at, data)
    select %(digest)s, 'factor', %(at)s, %(expires)s, %(data)s::jsonb from f)
select factor_type from f
"""
_MEET_CHALLENGE = """
delete from auth.challenges
where token_hash = %(challenge)s and purpose = 'factor' and expires_at > %(at)s
    and data ->> 'factor' = %(factor)s and data ->> 'session' = %(session)s
returning 1
"""
# Of two at once with the code of one time step the second finds it used.
_USE_STEP = """
update auth.totp_secrets set used_step = %(step)s where factor_id = %(factor)s::uuid and used_step < %(step)s
returning 1
"""
_USE_RECOVERY_CODE = """
delete from auth.recovery_codes where user_id = %(user)s::uuid and digest = %(recovery)s
    and exists (select from auth.mfa_factors f where f.id = %(factor)s::uuid and f.status = 'verified')
returning 1
"""
_USE_CREDENTIAL = f"""
update auth.webauthn_credentials set {_COUNTED} where factor_id = %(factor)s::uuid and {_GOES_UP} returning 1
"""
_ADD_CREDENTIAL = """
insert into auth.webauthn_credentials (id, user_id, factor_id, credential_id, public_key, sign_count, aaguid,
    transports, backed_up, friendly_name, created_at, updated_at)
values (%(key)s::uuid, %(user)s::uuid, %(factor)s::uuid, %(credential)s, %(public_key)s, %(count)s, %(aaguid)s::uuid,
    %(transports)s::text[], %(backed_up)s, %(name)s, %(at)s, %(at)s)
on conflict do nothing returning 1
"""
_VERIFY_FACTOR = f"""
update auth.mfa_factors f set status = 'verified', updated_at = %(at)s where {_OWN_FACTOR} returning 1
"""
# The session goes on with another refresh token, which is not derived from the one before: whoever has that one has
# not shown the factor.
_RAISE_SESSION = """
update auth.sessions set factor = %(method)s, factor_at = %(at)s, factor_id = %(factor)s::uuid,
    previous_hash = current_hash, current_hash = %(digest)s, salt = null, rotated_at = %(at)s, refreshed_at = %(at)s,
    expires_at = %(expires)s, access_expires_at = greatest(access_expires_at, %(access_expires)s),
    address = %(address)s
where id = %(session)s::uuid and user_id = %(user)s::uuid and ended_at is null and expires_at > %(at)s
returning created_at, method, factor, factor_at
"""
_ADD_TO_REFRESH = """
insert into auth.refresh_tokens (token_hash, session_id, issued_at) values (%(digest)s, %(session)s::uuid, %(at)s)
"""
# Sessions that were begun without the factor end, and so does what was not enrolled to its end.
_END_LESSER = f"""
delete from auth.mfa_factors where user_id = %(user)s::uuid and status = 'unverified' and factor_type = (
    select factor_type from auth.mfa_factors where id = %(factor)s::uuid);
with ended as (
    update auth.sessions set ended_at = %(at)s, end_reason = %(action)s
    where user_id = %(user)s::uuid and ended_at is null and factor is null
    returning id, access_expires_at),
a as ({RECORD})
select id::text, extract(epoch from access_expires_at + interval '1 minute')::float8 from ended
"""
_DELETE_FACTORS = f"""
with f as (
    delete from auth.mfa_factors where user_id = %(user)s::uuid and (%(factor)s is null or id = %(factor)s::uuid)
    returning id),
a as ({RECORD} where exists (select from f))
select count(*) from f
"""
_REPLACE_RECOVERY_CODES = f"""
delete from auth.recovery_codes where user_id = %(user)s::uuid;
insert into auth.recovery_codes (user_id, digest, created_at)
    select %(user)s::uuid, digest, %(at)s from unnest(%(digests)s::bytea[]) digest;
{RECORD}
"""
_NEEDS_FACTOR = """
select 1 where exists (select from auth.mfa_factors where user_id = %(user)s::uuid and status = 'verified')
    and not exists (select from auth.sessions
        where id = %(session)s::uuid and user_id = %(user)s::uuid and ended_at is null and factor is not null)
"""
# Passkeys: what their users sign in with.
PASSKEY = f"c.id::text, c.user_id::text, c.friendly_name, c.created_at, c.last_used_at, {CREDENTIAL}"
_OF_SIGN_IN = "auth.webauthn_credentials c where c.factor_id is null"
_PASSKEYS = f"select {PASSKEY} from {_OF_SIGN_IN} and c.user_id = %(user)s::uuid order by c.created_at, c.id"
_FIND_PASSKEY = f"select {PASSKEY} from {_OF_SIGN_IN} and c.credential_id = %(credential)s"
_OWN_PASSKEY = "id = %(key)s::uuid and user_id = %(user)s::uuid and factor_id is null"
_RENAME_PASSKEY = f"""
with c as (
    update auth.webauthn_credentials set friendly_name = %(name)s, updated_at = %(at)s where {_OWN_PASSKEY}
    returning *),
a as ({RECORD} from c)
select {PASSKEY} from c
"""
_DELETE_PASSKEY = f"""
with c as (delete from auth.webauthn_credentials where {_OWN_PASSKEY} returning id),
a as ({RECORD} from c)
select 1 from c
"""
_USE_PASSKEY = f"""
update auth.webauthn_credentials set {_COUNTED} where {_OWN_PASSKEY} and {_GOES_UP} returning 1
"""
# Challenges that are nobody's until they are answered.
_KEEP_CHALLENGE = """
insert into auth.challenges (token_hash, purpose, created_at, expires_at, data)
values (%(digest)s, %(purpose)s, %(at)s, %(expires)s, %(data)s::jsonb)
"""
_TAKE_CHALLENGE = """
delete from auth.challenges
where token_hash = %(digest)s and purpose = %(purpose)s and expires_at > %(now)s
    and coalesce(data ->> 'browser', '') = %(browser)s
returning data::text
"""
_FACTORS = (
    f"select json_agg(json_build_array({FACTOR}) order by f.created_at, f.id)::text from auth.mfa_factors f"
)

# Identities: accounts with providers. Users' rows are locked first, so that of two changes at once one waits.

_OF_IDENTITY = "provider = %(provider)s and provider_id = %(subject)s"
_FIND_BY_IDENTITY_AND_LOCK = f"""
select {ACCOUNT} from auth.users u where id = (select user_id from auth.identities where {_OF_IDENTITY})
for no key update
"""
_FIND_BY_EMAIL_AND_LOCK = f"""
select {ACCOUNT} from auth.users u where email_key = %(email_key)s for no key update
"""
_FIND_BY_SESSION_AND_LOCK = f"""
select {ACCOUNT} from auth.users u
where id = %(id)s::uuid and disabled_at is null
    and exists (select from auth.sessions s where s.id = %(keep)s::uuid and s.user_id = u.id and s.ended_at is null)
for no key update
"""
_ADD_IDENTITY = """
insert into auth.identities (user_id, provider, provider_id, identity_data, last_sign_in_at, created_at, updated_at)
values (%(id)s::uuid, %(provider)s, %(subject)s, %(data)s::jsonb, %(at)s, %(at)s, %(at)s)
"""
_USE_IDENTITY = f"""
update auth.identities set identity_data = %(data)s::jsonb, last_sign_in_at = %(at)s, updated_at = %(at)s
where {_OF_IDENTITY} and user_id = %(id)s::uuid returning 1
"""
# By a provider.
_TAKE_OVER = f"""
{_VOID_UNPROVEN};
delete from auth.mfa_factors where user_id = %(id)s::uuid;
delete from auth.recovery_codes where user_id = %(id)s::uuid;
delete from auth.webauthn_credentials where user_id = %(id)s::uuid;
update auth.users set confirmed_at = %(at)s, updated_at = %(at)s where id = %(id)s::uuid;
delete from auth.identities where user_id = %(id)s::uuid and provider <> 'email' and not ({_OF_IDENTITY})
"""
# Somebody anonymous is not any more with a way in; whoever has no address gets one that the provider has checked.
_SETTLE = """
update auth.users set is_anonymous = false, updated_at = %(at)s,
    email = case when email is null then %(email)s else email end,
    email_key = case when email is null then %(email_key)s else email_key end,
    confirmed_at = case when email is null and %(email)s is not null then %(at)s else confirmed_at end
where id = %(id)s::uuid
"""
_LIST_IDENTITIES = "select id::text, provider from auth.identities where user_id = %(id)s::uuid"
_REMOVE_IDENTITY = f"""
delete from auth.identities where id = %(identity)s::uuid;
{RECORD}
"""
# Of two who come at once by what nobody knows yet one has to try again, then knowing what the other has made.
_MEETINGS = frozenset({"identities_provider_provider_id_key", "users_email_key_key"})
_TRIES = 3


# What has expired.

# Some, and not always the same ones, since rows of the project's own may keep them.
_UNUSED_ANONYMOUS = f"select id::text from auth.users u where {_UNUSED} order by random() limit 100"
# One worker at a time; the lock goes with the transaction.
_LOCK = "select pg_try_advisory_xact_lock(%(lock)s)"
# How many rows are removed at a time, so that no statement runs long, however much there is to remove.
BATCH = 5000
_EXPIRED_ROWS = tuple(
    f"""
with gone as (
    select ctid from {table} where {condition} limit %(batch)s for update skip locked)
delete from {table} where ctid in (select ctid from gone) returning 1
"""
    for table, condition in (
        ("auth.throttle", "expires_at < %(now)s"),
        # By the database's clock as well: on another host, or when the clock of this one has been set right, access
        # tokens of the session may still be valid.
        ("auth.revocations", "expires_at < least(%(now)s, now())"),
        ("auth.challenges", "expires_at < %(now)s"),
        # An ended session stays until its refresh tokens would have expired, so that their reuse is recognised.
        ("auth.sessions", "expires_at < %(now)s and access_expires_at < %(now)s"),
        ("auth.audit", "at < %(audit_before)s"),
        (
            "auth.refresh_tokens",
            # All that would have expired by now if they had not been used, except the last two of each session.
            """issued_at < %(tokens_before)s and not exists (select from auth.sessions s
                where s.id = session_id and token_hash in (s.current_hash, s.previous_hash))""",
        ),
    )
)
# Users who were disabled until now may sign in again.
_ENABLE_AGAIN = """
update auth.users set disabled_at = null, disabled_until = null where id in (
    select id from auth.users where disabled_until < %(now)s limit %(batch)s for update skip locked)
returning 1
"""
# Salts of tokens whose reuse window has passed, but not those of the parents of active tokens, which are in
# auth.sessions.
_WIPE_SALTS = """
update auth.refresh_tokens set salt = null where token_hash in (
    select token_hash from auth.refresh_tokens where salt is not null and replaced_at < %(salt_before)s
    limit %(batch)s for update skip locked)
returning 1
"""
_EXPIRED = (_ENABLE_AGAIN, _WIPE_SALTS, *_EXPIRED_ROWS)


@frozen
class Repository:
    """What authentication asks of its database. Methods take the current time, so that limits and lifetimes can be
    tested with a clock of the test's own. ``tests/fakes/auth.py`` has the same in memory.

    Ended sessions are read by ``listener`` if there is one, since its connection is there even if all of ``database``
    are in use. A method that ends sessions without returning them returns once the subscribers of ``listener`` have
    been told of them. Changes of users that fire triggers of the project use the connections of ``actor``, if there
    is one, so that slow triggers keep nobody from signing in.
    """

    database: Pool
    listener: Listener | None = None
    actor: Actor | None = None

    # Users.

    async def create_user(
        self,
        *,
        email: Email | None,
        password_hash: bytes | None,
        metadata: Mapping[str, Any],
        confirmed: bool,
        session: NewSession | None,
        event: Event,
        user_id: str | None = None,
        app_metadata: Mapping[str, Any] = APP_METADATA,
        is_anonymous: bool = False,
        invited: bool = False,
    ) -> Account | None:
        """Create an account, with ``session`` as its first if there is one. None if the address is taken. Raises
        ``id_taken`` if somebody has the ``user_id`` that is given."""
        try:
            row = await self._changed(
                "insert",
                _CREATE,
                id=user_id,
                email=None if email is None else email.address,
                email_key=None if email is None else email.key,
                anonymous=is_anonymous,
                invited=invited,
                hash=None if password_hash is None else password_hash.decode("ascii"),
                metadata=_jsonb(metadata),
                app_metadata=_jsonb(app_metadata),
                confirmed=confirmed,
                **_session_params(session),
                **audit.params(event),
            )
        except UniqueViolation as refusal:
            # A trigger of the project's own may have met another key.
            if user_id is None or refusal.diag.constraint_name != "users_pkey":
                raise
            raise errors.id_taken() from None
        return account_of(row)

    async def find_user(self, user_id: str) -> Account | None:
        return account_of(_first(await self.database.read(_FIND, (user_id,))))

    async def profile(self, user_id: str) -> Profile | None:
        """The account with the user's ways in."""
        return _profile(_first(await self.database.read(_FIND_PROFILE, (user_id,))))

    async def find_user_by_email(self, email: Email) -> Account | None:
        return account_of(_first(await self.database.read(_FIND_BY_EMAIL, (email.key,))))

    async def list_users(self, after: tuple[datetime, str] | None, limit: int) -> list[Account]:
        """Users in the order in which they were created, those ``after`` the one created then with that id."""
        created, user_id = after or (None, None)
        rows = await self.database.query(_PAGE, {"after": created, "after_id": user_id, "limit": limit})
        return [account for row in rows if (account := account_of(row))]

    async def users_from(self, offset: int, limit: int) -> tuple[list[Profile], int]:
        """``limit`` users, the newest first, after ``offset`` others; and how many there are at all."""
        rows = await self.database.query(_PAGE_FROM, {"offset": offset, "limit": limit})
        return [one for row in rows if row[1] is not None and (one := _profile(row[1:]))], rows[0][0]

    async def set_metadata(self, user_id: str, metadata: Mapping[str, Any], event: Event) -> Account | None:
        params = {"id": user_id, "metadata": _jsonb(metadata), **audit.params(event)}
        return account_of(await self._changed("update", _SET_METADATA, **params))

    async def revise(self, user_id: str, revise: Callable[[User], User], event: Event) -> Account | None:
        """Store the metadata, the ``app_metadata`` and ``confirmed_at`` that ``revise`` makes of the user as it is
        then, which no one else changes meanwhile. Raises what ``revise`` raises."""

        async def revised(transaction: Transaction) -> Account | None:
            known = account_of(_first(await transaction.query(_FIND_AND_LOCK, {"id": user_id})))
            if known is None:
                return None
            user = revise(known.user)
            params = {
                "id": user_id,
                "metadata": _jsonb(user.metadata),
                "app_metadata": _jsonb(user.app_metadata),
                "confirmed_at": user.confirmed_at,
                **audit.params(event),
            }
            return account_of(_first(await transaction.query(_REVISE, params)))

        return await self._pool_for("update").transaction(revised)

    async def set_password(
        self,
        user_id: str,
        password_hash: bytes,
        proof: Proof | None,
        event: Event,
        *,
        keep_sessions: bool = False,
    ) -> Account | None:
        """Set the password, forget failed logins of the account, and end all sessions except the ``proof``'s, unless
        they are kept.

        Nothing is changed and None is returned if the proof does not hold any more: the password was changed, the
        user disabled, or the session ended since.
        """
        params: dict[str, Any] = {"id": user_id, "hash": password_hash.decode("ascii")}
        params["keep_sessions"] = keep_sessions
        params |= {**_proof_params(proof), **audit.params(event)}
        row = await self._changed("update", _SET_PASSWORD, **params)
        await self._announced()
        return account_of(row)

    async def set_disabled(
        self, user_id: str, disabled: bool, event: Event, until: datetime | None = None
    ) -> Account | None:
        """Disable the user, which ends all sessions, for good or ``until`` then; or enable them again."""
        sql = _DISABLE if disabled else _ENABLE
        row = await self._row(sql, id=user_id, keep=None, until=until, **audit.params(event))
        if disabled:
            await self._announced()
        return account_of(row)

    async def delete_user(
        self,
        user_id: str,
        event: Event,
        proof: Proof | None = None,
        *,
        unused_since: datetime | None = None,
    ) -> bool:
        """False if there is no such user or the ``proof`` does not hold any more, as for ``set_password``; or if it
        is none of ``unused_anonymous_users`` any more, where ``unused_since`` says since when. Raises
        ``user_in_use`` if rows of the project's own tables refer to the user."""
        params = _proof_params(proof) | audit.params(event) | {"before": unused_since}
        try:
            row = await self._changed("delete", _DELETE, id=user_id, **params)
        except (ForeignKeyViolation, RestrictViolation, NotNullViolation):
            # The project's own tables may have foreign keys to auth.users, which decide on this; also those ``on
            # delete set null`` of columns that cannot be null.
            raise errors.user_in_use() from None
        await self._announced()
        return row is not None

    # Sessions and their refresh tokens.

    async def start_session(
        self, account: Account, new_hash: bytes | None, session: NewSession, event: Event
    ) -> User | None:
        """Store a session after a login, and ``new_hash`` if there is one. None if the account was disabled, or its
        password changed, since ``account`` was read."""
        row = await self._row(
            _START,
            id=account.user.id,
            old_hash=account.password_hash.decode("ascii"),
            new_hash=None if new_hash is None else new_hash.decode("ascii"),
            **_session_params(session),
            **audit.params(event),
        )
        return _user(row)

    async def rotate_refresh_token(
        self,
        *,
        digest: bytes,
        successor: bytes,
        salt: bytes,
        now: datetime,
        reuse_window: timedelta,
        expires_at: datetime,
        access_expires_at: datetime,
        origin: Origin,
    ) -> Rotation | None:
        """Replace a refresh token by its ``successor``, or find out that it has been replaced before. None if the
        token is unknown or expired, or its session has ended."""
        row = await self._row(
            _ROTATE,
            digest=digest,
            successor=successor,
            salt=salt,
            now=now,
            reuse_window=reuse_window,
            expires=expires_at,
            access_expires=access_expires_at,
            address=origin.address,
            user_agent=origin.user_agent,
            request_id=origin.request_id,
        )
        user = _user(row)
        if row is None or user is None:
            return None
        session_id, outcome, salts, *began = row[USER_COLUMNS:]
        by_digest = json.loads(salts) if salts is not None else {}
        return Rotation(
            outcome,
            session_id,
            user,
            SignIn(*began),
            {bytes.fromhex(digest): bytes.fromhex(salt) for digest, salt in by_digest.items()},
        )

    async def list_sessions(
        self, user_id: str, now: datetime, maximum: int = MAX_LISTED_SESSIONS
    ) -> list[SessionInfo]:
        """The newest sessions of a user that have neither ended nor expired, the newest first."""
        rows = await self.database.query(_LIST, {"user_id": user_id, "now": now, "maximum": maximum})
        return [SessionInfo(*row) for row in rows]

    async def end_sessions(
        self, user_id: str, event: Event, *, only: str | None = None, but: str | None = None
    ) -> list[tuple[str, float]]:
        """End sessions of a user: all, ``only`` one, or all ``but`` one. The event's action is the recorded reason.

        Returns their ids, each with the Unix time until which access tokens of it may be valid.
        """
        rows = await self.database.query(
            _END, {"user_id": user_id, "only": only, "but": but, **audit.params(event)}
        )
        return [(row[0], row[1]) for row in rows]

    async def ended_sessions(self, now: datetime, since: datetime | None = None) -> list[tuple[str, float]]:
        """The ended sessions whose access tokens may still be valid, as ``end_sessions`` returns them: all, or those
        that ended after ``since``."""
        rows = await (self.listener or self.database).query(_ENDED, {"now": now, "since": since})
        return [(row[0], row[1]) for row in rows]

    # Counters of attempts.

    async def reserve_attempt(self, scope: str, subject: str, limit: Limit, now: datetime) -> Reservation:
        """Reserve an attempt by ``subject``, which ``record_outcome`` finishes. One that nobody has finished after a
        minute counts as a failure."""
        row = await self._row(
            _RESERVE,
            scope=scope,
            subject=subject,
            maximum=limit.maximum,
            window=limit.window,
            now=now,
        )
        assert row is not None
        verdict, wait_seconds, mark = row
        return Reservation(verdict, wait_seconds, mark, scope, subject)

    async def reserve_login(
        self, email: Email, address: str, per_email: Limit, per_address: Limit, now: datetime
    ) -> Reservation:
        """As ``reserve_attempt``, under both limits, with the account of ``email``."""
        row = await self._row(
            _RESERVE_LOGIN,
            email=email.key,
            address=address,
            maximum=per_email.maximum,
            address_maximum=per_address.maximum,
            window=per_email.window,
            now=now,
        )
        assert row is not None
        verdict, wait_seconds, mark, address_mark, *columns = row
        account = None if columns[0] is None else account_of(tuple(columns))
        return Reservation(verdict, wait_seconds, mark, "login", email.key, address, address_mark, account)

    async def record_outcome(
        self, reservation: Reservation, outcome: Outcome, event: Event | None = None
    ) -> None:
        """Store the outcome of an attempt (login, sign-up, e-mail) that counts against a limit, and the ``event`` if
        there is one.

        "failed" counts the attempt as a failure, "released" does not count it, and "cleared" clears the counter; in
        the counter of a login's address it is the same as "released".
        """
        sql = _FINISH_LOGIN if reservation.scope == "login" else _FINISH
        params = {
            "scope": reservation.scope,
            "subject": reservation.subject,
            "mark": reservation.mark,
            "outcome": outcome,
            "subject_address": reservation.address,
            "address_mark": reservation.address_mark,
            "address_outcome": "released" if outcome == "cleared" else outcome,
        }
        if event is not None:
            sql, params = f"{sql};\n{RECORD}", {**params, **audit.params(event)}
        await self.database.query(sql, params)

    async def record(self, event: Event) -> None:
        """Write an entry of the audit by itself."""
        await audit.record(self.database, event)

    async def unlock(self, account: Account, event: Event) -> None:
        """Forget all attempts at the password of ``account``, those of its sessions too."""
        await self.database.query(_UNLOCK, {"id": account.user.id, **audit.params(event)})

    # Challenges.

    async def issue(
        self, challenge: NewChallenge, pause: timedelta, event: Event
    ) -> tuple[User, Purpose] | None:
        """Store a challenge, in place of an older one of its purpose; whose it is, and its purpose. None if there is
        nobody to send it to: no such user, a disabled one, one who does not get this, or whose last one is younger
        than ``pause``. Of a change to another address than the last one there is no pause.

        If it takes over (``takes_over`` in its data) all do that replace it, and so does the one that it is too early
        to replace.
        """
        email = challenge.email
        row = await self._row(
            _LET_TAKE_OVER + _ISSUE if "takes_over" in challenge.data else _ISSUE,
            purpose=challenge.purpose,
            if_confirmed=challenge.if_confirmed,
            user=challenge.user_id,
            email_key=None if email is None else email.key,
            digest=challenge.digest,
            code_hash=challenge.code_hash,
            data=_jsonb(challenge.data),
            expires=challenge.expires_at,
            pause=pause,
            **audit.params(event),
        )
        user = _user(row)
        return None if row is None or user is None else (user, row[USER_COLUMNS])

    async def owner_of_token(
        self, digest: bytes, purposes: tuple[Purpose, ...], now: datetime
    ) -> User | None:
        """Whose token this is, of one of the purposes; it stays valid. None if it is not."""
        return _user(await self._row(_OWNER, digest=digest, purposes=list(purposes), now=now))

    async def pending(
        self,
        purposes: tuple[Purpose, ...],
        now: datetime,
        *,
        digest: bytes | None = None,
        email_key: str = "",
    ) -> tuple[str, Mapping[str, Any]] | None:
        """Whose challenge waits for an answer, and its data: that of the token of ``digest``, else one that was sent
        to ``email_key``."""
        row = await self._row(_PENDING, purposes=list(purposes), now=now, digest=digest, email_key=email_key)
        return None if row is None else (row[0], json.loads(row[1]))

    async def reset_password(self, digest: bytes, password_hash: bytes, event: Event) -> User | None:
        """Use up a token of a recovery or an invitation: set the password and end all sessions. None if the token is
        not valid."""

        async def reset(transaction: Transaction) -> User | None:
            answered = await _answered(transaction, Answer(FOR_PASSWORDS, digest), event.at)
            if answered is None:
                return None
            account = await _locked(transaction, answered[1])
            owner = account.user
            if account.confirmed_at is None:
                await transaction.query(_VOID_OTHER_WAYS, {"id": owner.id, "at": event.at})
            params = {"id": owner.id, "hash": password_hash.decode("ascii"), **audit.params(event)}
            await transaction.query(_RESET, {**params, "audit_user": owner.id, "audit_email": owner.email})
            return owner

        owner = await self._pool_for("update").transaction(reset)
        await self._announced()
        return owner

    async def redeem(
        self, answer: Answer, session: NewSession | None, auth_code: AuthCode | None, event: Event
    ) -> Redeemed | None:
        """Use up a challenge. None if the answer is wrong, which is recorded and counts as a try if it is a code.

        A change of address is made, once both addresses have confirmed it if both have to: raises ``email_taken``.
        Otherwise the address to which the challenge was sent is confirmed. If the user ``takes_over``, all that let
        anybody in before is void: password, sessions, passkeys, challenges, and identities of providers. Then
        ``session`` starts, if there is one; or, if the client that had asked for the challenge sent a code challenge,
        ``auth_code`` is kept for it, if there is one."""

        async def redeemed(transaction: Transaction) -> Redeemed | None:
            answered = await _answered(transaction, answer, event.at)
            if answered is None:
                if answer.digest is None:
                    # For an address that nothing was sent to, too, so that both take the time of a commit.
                    wrong = evolve(event, result="invalid_one_time_token", email=answer.email_key)
                    await transaction.query(RECORD, audit.params(wrong))
                return None
            purpose, user_id, data = answered
            owner = await _locked(transaction, user_id)
            if owner.disabled_at is not None:
                return None
            own = {"id": user_id, "at": event.at}
            if purpose in OF_CHANGE:
                new = {**own, "email": data["email"], "email_key": data["email_key"]}
                if data.get("both") and not data.get("half"):
                    await transaction.query(
                        _CONFIRM_HALF, {**new, "other": OF_CHANGE[purpose], "now": event.at}
                    )
                    return Redeemed(purpose, owner.user, data, half=True)
                await transaction.query(_CHANGE_EMAIL, new)
            elif takes_over(purpose, data, owner.user):
                await transaction.query(_VOID, own)
            keeps = auth_code is not None and "code_challenge" in data
            started = None if session is None or keeps else _begun(session, purpose, answer)
            action = ANSWERED[purpose][1]
            user = await _entered(
                transaction,
                user_id,
                started,
                evolve(event, action=action),
                proven=purpose != "reauthentication",
            )
            if user is None:
                return None
            if keeps and auth_code is not None and session is not None:
                kept = {**data, "user": user_id, "method": _begun(session, purpose, answer).method}
                await _keep_for_client(transaction, auth_code, kept, event.at)
            return Redeemed(purpose, user, data, started)

        try:
            found = await self._pool_for("update").transaction(redeemed)
        except UniqueViolation as refusal:
            raise _taken(refusal) from None
        await self._announced()
        return found

    async def change_email(self, user_id: str, email: Email, event: Event) -> Account | None:
        """Give the user another address, which counts as unconfirmed. Challenges that were sent to the old one are
        void. Raises ``email_taken``."""
        params = {"id": user_id, "email": email.address, "email_key": email.key, **audit.params(event)}
        try:
            return account_of(await self._changed("update", _SET_EMAIL, **params))
        except UniqueViolation as refusal:
            raise _taken(refusal) from None

    async def exchange(
        self, digest: bytes, challenges: tuple[str, ...], session: NewSession, event: Event
    ) -> Redeemed | None:
        """Use up an ``AuthCode`` whose code challenge is one of ``challenges``: ``session`` starts. None if there is
        no such code, or its user is gone or disabled. Raises ``bad_code_verifier``."""

        async def exchanged(transaction: Transaction) -> Redeemed | None:
            params = {"digest": digest, "challenges": list(challenges), "now": event.at}
            await transaction.query(_LOCK_EXCHANGER, params)
            row = _first(await transaction.query(_EXCHANGE, params))
            if row is None:
                return None
            if row[0] is None:
                raise errors.bad_code_verifier()
            data = json.loads(row[0])
            started = evolve(session, method=data["method"])
            user = await _entered(transaction, data["user"], started, event, proven=False)
            return None if user is None else Redeemed("pkce", user, data, started)

        return await self._pool_for("update").transaction(exchanged)

    # Further factors.

    async def enrol_factor(
        self, factor: Factor, secret: bytes | None, stale: datetime, maximum: int, event: Event
    ) -> None:
        """Store a factor that is not verified yet, with the secret of its codes if it has one; those that were
        enrolled until ``stale`` and never verified are deleted. Raises ``factor_name_taken``,
        ``too_many_factors`` (the user has ``maximum``) and ``session_revoked`` (the user is gone or disabled)."""
        params = {
            "user": factor.user_id,
            "factor": factor.id,
            "name": factor.name,
            "type": factor.type,
            "secret": secret,
            "stale": stale,
            "maximum": maximum,
            **audit.params(event),
        }

        async def enrolled(transaction: Transaction) -> Row | None:
            if not await transaction.query(_LOCK_ACTIVE, params):
                raise session_revoked()
            return _first(await transaction.query(_ENROL, params))

        row = await self.database.transaction(enrolled)
        assert row is not None
        added, name_taken = row
        if not added:
            raise errors.factor_name_taken() if name_taken else errors.too_many_factors()

    async def find_factor(self, user_id: str, factor_id: str) -> OwnFactor | None:
        row = await self._row(_FIND_FACTOR, user=user_id, factor=factor_id)
        if row is None:
            return None
        kind, is_verified, secret, *credential = row
        return OwnFactor(
            kind, is_verified, None if secret is None else bytes(secret), _credential(tuple(credential))
        )

    async def challenge_factor(
        self,
        user_id: str,
        session_id: str,
        factor_id: str,
        digest: bytes,
        at: datetime,
        expires_at: datetime,
        data: Mapping[str, Any] = {},
    ) -> FactorType | None:
        """Store the digest of a challenge, which the session can answer by the factor, with ``data``; the type of the
        factor. None if there is no such factor."""
        row = await self._row(
            _CHALLENGE_FACTOR,
            user=user_id,
            session=session_id,
            factor=factor_id,
            digest=digest,
            at=at,
            expires=expires_at,
            data=_jsonb({**data, "factor": factor_id, "session": session_id}),
        )
        return None if row is None else row[0]

    async def prove_factor(self, proof: FactorProof, renewed: NewSession, event: Event) -> Raised:
        """Use up the challenge and the code of ``proof``: the factor is verified, the session goes on as shown by it,
        with the refresh token and times of ``renewed``, and the user's sessions that are shown by none end. So do
        other factors of its type that were never verified.

        Raises ``session_revoked`` if the session has ended, ``factor_challenge_expired``,
        ``factor_verification_failed`` (a code that was used), ``passkey_verification_failed`` (a counter that has not
        gone up), ``passkey_taken`` and ``factor_not_found``; then nothing is changed.
        """
        params = {
            "user": proof.user_id,
            "session": proof.session_id,
            "factor": proof.factor_id,
            "challenge": proof.challenge,
            "step": proof.step,
            "recovery": proof.recovery,
            "method": proof.method,
            **_credential_params(proof.factor_id, "", proof.credential),
            "digest": renewed.digest,
            "expires": renewed.expires_at,
            "access_expires": renewed.access_expires_at,
            **audit.params(event),
        }

        async def proven(transaction: Transaction) -> Raised:
            if not await transaction.query(_LOCK_ACTIVE, params):
                raise session_revoked()
            if not await transaction.query(_MEET_CHALLENGE, params):
                raise errors.factor_challenge_expired()
            await _use_proof(transaction, proof, params)
            if not await transaction.query(_VERIFY_FACTOR, params):
                raise errors.factor_not_found()
            began = _first(await transaction.query(_RAISE_SESSION, params))
            if began is None:
                raise session_revoked()
            await transaction.query(_ADD_TO_REFRESH, params)
            ended = await transaction.query(_END_LESSER, params)
            user = (await _locked(transaction, proof.user_id)).user
            return Raised(user, SignIn(*began), [(row[0], row[1]) for row in ended])

        return await self.database.transaction(proven)

    async def delete_factors(self, user_id: str, event: Event, factor_id: str | None = None) -> int:
        """Delete the user's factors, or only that of ``factor_id``: how many there were. Sessions that were shown by
        it are not any more."""
        params = {"user": user_id, "factor": factor_id, **audit.params(event)}

        async def deleted(transaction: Transaction) -> Row | None:
            await transaction.query(_LOCK_ACTIVE, params)
            return _first(await transaction.query(_DELETE_FACTORS, params))

        row = await self.database.transaction(deleted)
        return 0 if row is None else row[0]

    async def replace_recovery_codes(self, user_id: str, digests: list[bytes], event: Event) -> None:
        """Store the digests of the user's recovery codes, in place of all that there were."""
        params = {"user": user_id, "digests": digests, **audit.params(event)}

        async def replaced(transaction: Transaction) -> None:
            if not await transaction.query(_LOCK_ACTIVE, params):
                raise session_revoked()
            await transaction.query(_REPLACE_RECOVERY_CODES, params)

        await self.database.transaction(replaced)

    async def needs_factor(self, user_id: str, session_id: str) -> bool:
        """Whether the user has a factor that counts, and the session has been shown by none."""
        return await self._row(_NEEDS_FACTOR, user=user_id, session=session_id) is not None

    async def all_factors(self) -> list[Factor]:
        """The factors of all users."""
        row = await self._row(_FACTORS)
        return [] if row is None else [_factor(one) for one in json.loads(row[0] or "[]")]

    # Passkeys.

    async def passkeys(self, user_id: str) -> list[Passkey]:
        """What the user signs in with, the oldest first."""
        rows = await self.database.query(_PASSKEYS, {"user": user_id})
        return [_passkey(row) for row in rows]

    async def find_passkey(self, credential_id: bytes) -> Passkey | None:
        row = await self._row(_FIND_PASSKEY, credential=credential_id)
        return None if row is None else _passkey(row)

    async def add_passkey(self, passkey: Passkey, maximum: int, event: Event) -> None:
        """Raises ``passkey_taken``, ``too_many_passkeys`` (the user has ``maximum``) and ``session_revoked`` (the
        user is gone or disabled)."""
        params = {
            "user": passkey.user_id,
            "factor": None,
            **_credential_params(passkey.id, passkey.name, passkey.credential),
            **audit.params(event),
        }

        async def added(transaction: Transaction) -> None:
            if not await transaction.query(_LOCK_ACTIVE, params):
                raise session_revoked()
            if len(await transaction.query(_PASSKEYS, params)) >= maximum:
                raise errors.too_many_passkeys()
            if not await transaction.query(_ADD_CREDENTIAL, params):
                raise errors.passkey_taken()
            await transaction.query(RECORD, params)

        await self.database.transaction(added)

    async def rename_passkey(self, user_id: str, passkey_id: str, name: str, event: Event) -> Passkey | None:
        """The passkey with its new name; None if the user has no such passkey."""
        params = {"user": user_id, "key": passkey_id, "name": name, **audit.params(event)}
        row = await self._row(_RENAME_PASSKEY, **params)
        return None if row is None else _passkey(row)

    async def delete_passkey(self, user_id: str, passkey_id: str, event: Event) -> bool:
        params = {"user": user_id, "key": passkey_id, **audit.params(event)}
        return await self._row(_DELETE_PASSKEY, **params) is not None

    async def begin_by_passkey(self, passkey: Passkey, session: NewSession, event: Event) -> User | None:
        """Start a session by a passkey, which has signed with the counter that it has in ``passkey``. None if the
        user is gone or disabled; raises ``passkey_verification_failed`` if the passkey is gone, or its counter has
        not gone up."""
        params = {
            "user": passkey.user_id,
            "key": passkey.id,
            "count": passkey.credential.sign_count,
            "at": event.at,
        }

        async def begun(transaction: Transaction) -> User | None:
            if not await transaction.query(_LOCK_ACTIVE, params):
                return None
            if not await transaction.query(_USE_PASSKEY, params):
                raise errors.passkey_verification_failed()
            return await _entered(transaction, passkey.user_id, session, event, proven=False)

        return await self.database.transaction(begun)

    async def keep_challenge(
        self, purpose: Purpose, digest: bytes, at: datetime, expires_at: datetime, data: Mapping[str, Any]
    ) -> None:
        """Store a challenge that is nobody's until it is answered."""
        params = {"purpose": purpose, "digest": digest, "at": at, "expires": expires_at}
        await self.database.query(_KEEP_CHALLENGE, {**params, "data": _jsonb(data)})

    async def take_challenge(
        self, purpose: Purpose, digest: bytes, now: datetime, browser: str = ""
    ) -> Mapping[str, Any] | None:
        """Use up a challenge of ``keep_challenge``: its data. None if there is none, or its member ``browser`` is
        another; then it stays."""
        row = await self._row(_TAKE_CHALLENGE, purpose=purpose, digest=digest, now=now, browser=browser)
        return None if row is None else json.loads(row[0])

    # Identities.

    async def enter(
        self, who: ByProvider, session: NewSession, auth_code: AuthCode | None, event: Event
    ) -> Redeemed | None:
        """Let in who came by a provider: the user of that identity; else the one with the address, if the provider
        has checked it, who gets the identity; else a new one. None if a new one must not be made.

        If nobody had confirmed the account's address, and the provider has checked it, it is confirmed, and all that
        let anybody in before is void: password, sessions, challenges and other identities. Then ``session`` begins,
        or ``auth_code`` is kept in its place; or neither, if the address has to be confirmed first.

        Raises ``address_taken`` for the address of another user that the provider has not checked, and
        ``user_disabled``.
        """
        params = {**_identity_params(who), "at": event.at}

        async def entered(transaction: Transaction) -> Redeemed | None:
            found = await _account_by_provider(transaction, who, event, params)
            if found is None:
                return None
            account, action = found
            awaits = account.user.email and account.user.awaits_confirmation and not _is_proven(account, who)
            if who.confirm and awaits:
                return Redeemed("oauth", account.user, {})
            return await _let_in(transaction, account, session, auth_code, evolve(event, action=action))

        redeemed = await self._meeting(entered)
        await self._announced()
        return redeemed

    async def link(
        self, who: ByProvider, proof: Proof, session: NewSession, auth_code: AuthCode | None, event: Event
    ) -> Redeemed:
        """Give the user of ``event`` an identity, as long as the session of ``proof`` has not ended. Somebody
        anonymous becomes a user like others, and who has no address gets that of the identity, if the provider has
        checked it. ``session`` and ``auth_code`` are as for ``enter``.

        Raises ``session_revoked``, ``identity_taken`` and ``address_taken``.
        """
        verified = who.email is not None and who.is_verified
        own = {"id": event.user_id, "keep": proof.session_id, "at": event.at}
        params = {**_identity_params(who), **own}
        settled = {
            **own,
            "email": who.email.address if verified and who.email else None,
            "email_key": who.email.key if verified and who.email else None,
        }

        async def linked(transaction: Transaction) -> Redeemed:
            account = account_of(_first(await transaction.query(_FIND_BY_SESSION_AND_LOCK, params)))
            if account is None:
                raise session_revoked()
            await transaction.query(_ADD_IDENTITY, params)
            if account.user.is_anonymous or not account.user.email:
                await transaction.query(_SETTLE, settled)
            return await _let_in(transaction, account, session, auth_code, event)

        try:
            return await self._pool_for("update").transaction(linked)
        except UniqueViolation as refusal:
            if refusal.diag.constraint_name == "identities_provider_provider_id_key":
                raise errors.identity_taken() from None
            if refusal.diag.constraint_name == "users_email_key_key":
                raise errors.address_taken() from None
            raise

    async def unlink(self, user_id: str, identity_id: str, event: Event) -> None:
        """Remove an identity of a provider. Raises ``identity_not_found``, ``address_identity`` and
        ``last_identity``."""

        async def unlinked(transaction: Transaction) -> None:
            await transaction.query(_FIND_AND_LOCK, {"id": user_id})
            known: dict[str, str] = dict(await transaction.query(_LIST_IDENTITIES, {"id": user_id}))
            if identity_id not in known:
                raise errors.identity_not_found()
            if len(known) == 1:
                raise errors.last_identity()
            if known[identity_id] == "email":
                raise errors.address_identity()
            await transaction.query(_REMOVE_IDENTITY, {"identity": identity_id, **audit.params(event)})

        await self._pool_for("update").transaction(unlinked)

    async def all_identities(self) -> list[Identity]:
        """The identities of all users."""
        row = await self._row(IDENTITIES)
        return [] if row is None else [_identity(one) for one in json.loads(row[0] or "[]")]

    async def _meeting(self, function: Callable[[Transaction], Awaitable[T]]) -> T:
        """The result of a transaction that is run again if it met another one."""
        for left in reversed(range(_TRIES)):
            try:
                return await self._pool_for("insert", "update").transaction(function)
            except _Again:
                pass
            except UniqueViolation as refusal:
                if not left or refusal.diag.constraint_name not in _MEETINGS:
                    raise
        raise overloaded()

    # What has expired.

    async def delete_expired(
        self, now: datetime, salt_before: datetime, tokens_before: datetime, audit_before: datetime
    ) -> bool:
        """Delete what has expired. False if another worker is doing so.

        Salts of refresh tokens that were replaced before ``salt_before`` are deleted, except those of the active
        tokens' parents. Of refresh tokens issued before ``tokens_before`` only the last two of each session are kept.
        """
        params = {
            "batch": BATCH,
            "now": now,
            "salt_before": salt_before,
            "tokens_before": tokens_before,
            "audit_before": audit_before,
        }

        async def delete_batch(transaction: Transaction) -> int | None:
            row = _first(await transaction.query(_LOCK, {"lock": AUTH_UPKEEP}))
            if row is None or not row[0]:
                return None
            batches = [await transaction.query(sql, params) for sql in _EXPIRED]
            return max(len(rows) for rows in batches)

        while (largest := await self.database.transaction(delete_batch)) is not None:
            if largest < BATCH:
                return True
        return False

    async def unused_anonymous_users(self, before: datetime) -> list[str]:
        """The ids of some anonymous users who have had no session since ``before``."""
        rows = await self.database.query(_UNUSED_ANONYMOUS, {"before": before})
        return [row[0] for row in rows]

    async def _row(self, sql: str, **params: Any) -> Row | None:
        """The first row of the last statement of ``sql``, or None."""
        return _first(await self.database.query(sql, params))

    async def _changed(self, change: Change, sql: str, **params: Any) -> Row | None:
        """As ``_row``, for an insert, update or delete of a user, which triggers of the project may be about."""
        return _first(await self._pool_for(change).query(sql, params))

    async def _announced(self) -> None:
        """Sessions may have ended: returns when this process knows of it, so that whoever is told that it is done
        does not get through with their tokens any more."""
        if self.listener is not None:
            await self.listener.catch_up()

    def _pool_for(self, *changes: Change) -> Pool:
        if self.actor is None:
            return self.database
        triggers = self.actor.trust().triggers
        fires = any(f"auth.users {change}" in triggers for change in changes)
        return self.actor.pool if fires else self.database


async def _answered(
    transaction: Transaction, answer: Answer, now: datetime
) -> tuple[Purpose, str, dict[str, Any]] | None:
    """The purpose, the user's id and the data of the challenge that ``answer`` uses up; None if it is wrong. Nobody
    else changes the user until the transaction ends."""
    params = {
        "purposes": list(answer.purposes),
        "digest": answer.digest,
        "email_key": answer.email_key,
        "code_hashes": list(answer.code_hashes),
        "user": answer.user_id,
        "now": now,
    }
    await transaction.query(_LOCK_OWNERS, params)
    row = _first(await transaction.query(_ANSWER, params))
    return None if row is None else (row[0], row[1], json.loads(row[2]))


async def _use_proof(transaction: Transaction, proof: FactorProof, params: dict[str, Any]) -> None:
    """Use up a code, or take over the credential as it is after a signature; the first is kept."""
    if proof.credential is None:
        used = _USE_STEP if proof.recovery is None else _USE_RECOVERY_CODE
        if not await transaction.query(used, params):
            raise errors.factor_verification_failed()
        return
    known = await transaction.query(_FIND_FACTOR, params)
    if known and _credential(known[0][3:]) is None:
        if not await transaction.query(_ADD_CREDENTIAL, params):
            raise errors.passkey_taken()
    elif not await transaction.query(_USE_CREDENTIAL, params):
        raise errors.passkey_verification_failed()


async def _locked(transaction: Transaction, user_id: str) -> Account:
    account = account_of(_first(await transaction.query(_FIND_AND_LOCK, {"id": user_id})))
    assert account is not None
    return account


async def _entered(
    transaction: Transaction, user_id: str, session: NewSession | None, event: Event, *, proven: bool
) -> User | None:
    """The user, whose ``session`` has started if there is one; None if the user is gone or disabled."""
    params = {"id": user_id, "proven": proven, **_session_params(session), **audit.params(event)}
    return _user(_first(await transaction.query(_ENTER, params)))


async def _let_in(
    transaction: Transaction,
    account: Account,
    session: NewSession,
    auth_code: AuthCode | None,
    event: Event,
) -> Redeemed:
    started = evolve(session, method="oauth") if auth_code is None else None
    user = await _entered(transaction, account.user.id, started, event, proven=False)
    assert user is not None  # the row is locked, and the user not disabled
    if auth_code is not None:
        kept = {"user": user.id, "method": "oauth"}
        await _keep_for_client(transaction, auth_code, kept, event.at)
    return Redeemed("oauth", user, {}, started)


def _taken(refusal: UniqueViolation) -> Exception:
    """``email_taken``, unless a trigger of the project's own has met another key."""
    return errors.email_taken() if refusal.diag.constraint_name == "users_email_key_key" else refusal


def _begun(session: NewSession, purpose: Purpose, answer: Answer) -> NewSession:
    method: Method = "otp" if purpose == "magic_link" and answer.digest is None else ANSWERED[purpose][0]
    return evolve(session, method=method)


async def _keep_for_client(
    transaction: Transaction, code: AuthCode, data: Mapping[str, Any], now: datetime
) -> None:
    """In place of a session: a code for the client that asked for the challenge, which it exchanges for one."""
    params = {"digest": code.digest, "purpose": "pkce", "expires": code.expires_at}
    await transaction.query(_KEEP_CHALLENGE, {**params, "data": _jsonb({**data, **code.data}), "at": now})


async def _account_by_provider(
    transaction: Transaction, who: ByProvider, event: Event, params: Mapping[str, Any]
) -> tuple[Account, str] | None:
    """Whose account it is that somebody came to by a provider, and what that is called in the audit; None if it would
    be a new one, which must not be made. Raises ``address_taken``, ``user_disabled`` and ``_Again``."""
    account = account_of(_first(await transaction.query(_FIND_BY_IDENTITY_AND_LOCK, params)))
    action, is_known = "login_by_provider", account is not None
    if account is None and who.email is not None:
        account = account_of(_first(await transaction.query(_FIND_BY_EMAIL_AND_LOCK, params)))
        if account is not None and not who.is_verified:
            raise errors.address_taken()
        action = "join_identity"
    if account is None:
        if who.new_id is None:
            return None
        new = {
            "id": who.new_id,
            "email": None if who.email is None else who.email.address,
            "anonymous": False,
            "invited": False,
            "hash": None,
            "metadata": _jsonb(who.metadata),
            "app_metadata": _jsonb({"provider": who.provider, "providers": [who.provider]}),
            "confirmed": who.email is not None and who.is_verified,
            **_session_params(None),
            **audit.params(evolve(event, action="signup_by_provider")),
        }
        account, action = (
            account_of(_first(await transaction.query(_CREATE, {**params, **new}))),
            "login_by_provider",
        )
        if account is None:
            raise _Again  # somebody else has made one with this address meanwhile
    if account.disabled_at is not None:
        raise errors.user_disabled()
    own = {**params, "id": account.user.id}
    if is_known and not await transaction.query(_USE_IDENTITY, own):
        raise _Again  # it was removed meanwhile
    if _is_proven(account, who):
        await transaction.query(_TAKE_OVER, own)
    if not is_known:
        await transaction.query(_ADD_IDENTITY, own)
    return account, action


def _is_proven(account: Account, who: ByProvider) -> bool:
    """Whether the provider shows whose the account's address is, which nobody has shown before."""
    known = email_of(account.user).key
    return (
        account.confirmed_at is None and who.is_verified and who.email is not None and who.email.key == known
    )


class _Again(Exception):
    """What was read has changed since; the transaction has to run once more."""


def _first(rows: list[Row]) -> Row | None:
    return rows[0] if rows else None


# Between rows and values.


def _user(row: Row | None) -> User | None:
    """The user in the columns ``USER``, or None without a row."""
    if row is None:
        return None
    user_id, email, created_at, metadata, app_metadata, *more = row[:USER_COLUMNS]
    return User(user_id, email, created_at, load_metadata(metadata), load_metadata(app_metadata), *more)


def account_of(row: Row | None) -> Account | None:
    """The account in the columns ``ACCOUNT``, or None without a row."""
    user = _user(row)
    if row is None or user is None:
        return None
    password_hash, disabled_at, disabled_until = row[USER_COLUMNS:ACCOUNT_COLUMNS]
    return Account(user, (password_hash or "").encode("ascii"), disabled_at, disabled_until)


def _profile(row: Row | None) -> Profile | None:
    """The profile in the columns ``PROFILE``, or None without a row."""
    account = account_of(row)
    if row is None or account is None:
        return None
    identities, factors, sent, new_email, invited_at = row[ACCOUNT_COLUMNS:]
    return Profile(
        account,
        tuple(_identity(one) for one in json.loads(identities or "[]")),
        tuple(_factor(one) for one in json.loads(factors or "[]")),
        {purpose: datetime.fromisoformat(at) for purpose, at in json.loads(sent or "{}").items()},
        new_email or "",
        invited_at,
    )


def _identity(values: list[Any]) -> Identity:
    *texts, last, created, updated = values
    moments = (None if at is None else datetime.fromisoformat(at) for at in (last, created, updated))
    return Identity(*texts, *moments)


def _factor(values: list[Any]) -> Factor:
    """The factor in the columns ``FACTOR``, in JSON."""
    factor_id, user_id, name, kind, is_verified, *times = values
    created, updated = map(datetime.fromisoformat, times)
    return Factor(factor_id, user_id, name, kind, is_verified, created, updated)


def _credential(row: Row) -> Credential | None:
    """The credential in the columns ``CREDENTIAL``, or None if they are empty."""
    if row[0] is None:
        return None
    key, public_key, count, aaguid, transports, backed_up = row
    return Credential(bytes(key), bytes(public_key), count, aaguid, tuple(transports), backed_up)


def _passkey(row: Row) -> Passkey:
    """The passkey in the columns ``PASSKEY``."""
    passkey_id, user_id, name, created_at, last_used_at, *columns = row
    credential = _credential(tuple(columns))
    assert credential is not None
    return Passkey(passkey_id, user_id, name, credential, created_at, last_used_at)


def _credential_params(key: str, name: str, credential: Credential | None) -> dict[str, Any]:
    """The parameters of ``_ADD_CREDENTIAL``, besides whose it is."""
    return {
        "key": key,
        "name": name,
        "credential": credential and credential.id,
        "public_key": credential and credential.public_key,
        "count": credential and credential.sign_count,
        "aaguid": credential and credential.aaguid,
        "transports": credential and list(credential.transports),
        "backed_up": credential and credential.is_backed_up,
    }


def _jsonb(value: Mapping[str, Any]) -> str:
    return json.dumps(dict(value), ensure_ascii=False, separators=(",", ":"))


def _identity_params(who: ByProvider) -> dict[str, Any]:
    return {
        "provider": who.provider,
        "subject": who.subject,
        "email_key": None if who.email is None else who.email.key,
        "data": _jsonb(who.data),
    }


def _session_params(session: NewSession | None) -> dict[str, Any]:
    """The parameters of ``ADD_SESSION``. Without a session all are None, and nothing is inserted."""
    return {
        "sid": session and session.id,
        "digest": session and session.digest,
        "started": session and session.created_at,
        "expires": session and session.expires_at,
        "access_expires": session and session.access_expires_at,
        "method": session and session.method,
        "factor": session and session.factor,
        "factor_at": session and session.factor_at,
    }


def _proof_params(proof: Proof | None) -> dict[str, Any]:
    return {
        "known_hash": None if proof is None else proof.password_hash.decode("ascii"),
        "keep": None if proof is None else proof.session_id,
    }
