"""Which roles a token may claim: as with PostgREST those that the role which connects is a member of.

PostgreSQL itself sees to that, with two exceptions. Every role may become itself, which here means one that owns
tables, or may make roles. And a superuser may become every role, so it is asked of which it was made a member.

A name is compared as it is: PostgreSQL neither folds nor trims one in ``set_config('role', …)``. But it cuts one of
more than 63 bytes, which might make another role's name of it, so such a name is refused.
"""

from __future__ import annotations

import psycopg2

from project_service.database.connection import DatabaseGone
from project_service.database.pool import Pool
from project_service.tables.access import Identity
from project_service.tables.errors import TableError, from_postgres, from_sqlstate
from project_service.tables.plan.nodes import NAME_BYTES
from project_service.tables.values import SchemaCache, TablesConfig

# The roles that the one which connects was made a member of, for WITH RECURSIVE. Memberships have had the option SET
# since PostgreSQL 16.
REACHABLE = """
reachable(oid) as (
  select m.roleid from pg_catalog.pg_auth_members m join pg_catalog.pg_roles r on r.oid = m.member
  where r.rolname = session_user and pg_catalog.to_jsonb(m) ->> 'set_option' is distinct from 'false'
  union
  select m.roleid from pg_catalog.pg_auth_members m join reachable r on r.oid = m.member
  where pg_catalog.to_jsonb(m) ->> 'set_option' is distinct from 'false'
)"""
_IS_MEMBER = f"""
with recursive {REACHABLE}
select from reachable join pg_catalog.pg_roles r using (oid) where r.rolname = %s
"""


def no_such_role(name: str) -> TableError:
    """As PostgreSQL answers for a role that does not exist, its name cut in the same way."""
    shown = name.encode()[:NAME_BYTES].decode(errors="ignore")
    return from_sqlstate("22023", f'role "{shown}" does not exist')


async def check_claimed_role(
    identity: Identity, cache: SchemaCache, config: TablesConfig, pool: Pool
) -> None:
    """Raises 22023 where the role of ``identity`` comes from a token that may not claim it.

    The configured roles may be claimed as well: they are meant for callers.
    """
    role = identity.role
    if role == cache.connects_as or len(role.encode()) > NAME_BYTES:
        raise no_such_role(role)
    if not cache.as_superuser or role in (config.anon_role, config.authenticated_role, config.service_role):
        return
    try:
        rows = await pool.query(f"set local search_path = ''; {_IS_MEMBER}", [role])
    except (psycopg2.Error, DatabaseGone) as error:
        raise from_postgres(error, identity.authenticated) from error
    if not rows:
        raise no_such_role(role)
