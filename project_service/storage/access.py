"""Who may do what to the objects of a bucket. Pure.

This is the one place where that is decided, before any byte moves; whether an object fits is for ``upload`` to say.
The database decides again within the transaction of a change (``storage.refusal``, ``storage.sees`` and
``storage.judge``, in ``database/sql/storage``), so that nobody comes between the check and the change. The contract
suite in ``tests/contracts/storage`` holds both to the same answers.

Policies are SQL, so only the database can ask them. A route does it thus, and then every rule has been asked:

* *May this caller read this key?* ``check_read`` returns the ``Viewer``, and ``ObjectRows.find`` with it the row, or
  None. ``ObjectRows.page`` takes it likewise.
* *May this caller write this key?* ``writer_of`` returns the ``Writer``, ``Uploads.check`` raises before any byte
  is read, and each change of ``ObjectRows`` raises in its transaction.
"""

from __future__ import annotations

from uuid import UUID

import orjson

from project_service.errors import (
    ApiError,
    authentication_required,
    require_text,
    service_key_required,
    validation_failed,
)
from project_service.http.caller import Caller
from project_service.storage import errors
from project_service.storage.values import (
    ANON_ROLE,
    USER_ROLE,
    Bucket,
    BucketRules,
    Conditions,
    Identity,
    ObjectRow,
    Viewer,
    Writer,
)

# The claims that the table API shows to SQL where there is no token.
_ANONYMOUS = Identity(ANON_ROLE, f'{{"role":"{ANON_ROLE}"}}')


def check_read(caller: Caller, bucket: Bucket) -> Viewer | None:
    """List, download and presign: anyone with a project key where the bucket is public.

    Returns what ``viewer_of`` returns. Raises ``authentication_required``.
    """
    rules = bucket.rules
    if rules.visibility != "public" and not caller.signed_in:
        raise authentication_required()
    if caller.is_service or not (rules.owner_only_reads or rules.policies):
        return None
    if not rules.policies:
        return Viewer(caller.user_id)
    return viewer_of(rules, _unchecked_writer(caller))


def check_anonymous_read(bucket: Bucket) -> Viewer | None:
    """A download by anybody, without any key: where the bucket is public and has ``anonymous_reads``.

    Returns what ``check_read`` returns. Raises ``object_not_found``, so that nobody learns which buckets there are.
    """
    if not bucket.rules.anonymous_reads:
        raise errors.object_not_found()
    return check_read(Caller(), bucket)


def check_open_read(bucket: Bucket) -> Viewer | None:
    """As ``check_anonymous_read``, at the address of a bucket that is ``open``, where policies are not asked."""
    if bucket.open and bucket.rules.anonymous_reads:
        return None
    return check_anonymous_read(bucket)


# For clients of the Supabase family, to which policies are all: they let callers in who have the anon key alone, into
# private buckets too, and let them write. Rules about owners are kept, so there callers are users.


def check_read_by_policies(caller: Caller, bucket: Bucket) -> Viewer | None:
    """As ``check_read``, but where policies decide, they decide alone."""
    if _policies_alone(bucket.rules):
        return viewer_of(bucket.rules, _unchecked_writer(caller))
    return check_read(caller, bucket)


def check_fetch_by_policies(caller: Caller, bucket: Bucket) -> Viewer | None:
    """As ``check_read_by_policies``, for one object: in a bucket that is ``open`` policies are not asked."""
    return None if bucket.open and bucket.rules.anonymous_reads else check_read_by_policies(caller, bucket)


def writer_by_policies(caller: Caller, bucket: Bucket) -> Writer:
    """As ``writer_of``, but where policies decide, they decide alone."""
    return _unchecked_writer(caller) if _policies_alone(bucket.rules) else writer_of(caller)


def caller_by_policies(caller: Caller) -> Writer:
    """Who sees, makes and changes buckets where policies on ``storage.buckets`` decide."""
    return _unchecked_writer(caller)


def _policies_alone(rules: BucketRules) -> bool:
    return rules.policies and not (rules.owner_only_reads or rules.owner_only_writes)


def viewer_of(rules: BucketRules, writer: Writer) -> Viewer | None:
    """What ``writer`` may see; None: everything. What may not be seen is treated as if it were not there.

    The service key passes these rules. Policies need to know who calls: ``ValueError`` if ``writer`` does not say it.
    """
    if writer.is_service or not (rules.owner_only_reads or rules.policies):
        return None
    if rules.policies and writer.identity is None:
        raise ValueError("the writer has no identity")
    return Viewer(
        writer.user_id if rules.owner_only_reads else None, writer.identity if rules.policies else None
    )


def _unchecked_writer(caller: Caller) -> Writer:
    user = caller.user
    if user is None:
        return Writer(None, caller.is_service, None if caller.is_service else _ANONYMOUS)
    identity = Identity(USER_ROLE, orjson.dumps(user.raw).decode())
    return Writer(UUID(user.sub), caller.is_service, identity)


def writer_of(caller: Caller, owner: str | None = None) -> Writer:
    """The caller of a request that changes objects: always a signed-in end user or the service key.

    ``owner`` is the header ``X-Object-Owner``: the user to whom what is written is to belong. Raises
    ``authentication_required``, and what ``parse_owner`` raises.
    """
    if not caller.signed_in:
        raise authentication_required()
    writer = _unchecked_writer(caller)
    return writer if owner is None else Writer(parse_owner(owner, writer, "X-Object-Owner"), True)


def parse_owner(text: str, writer: Writer, name: str = "owner") -> UUID:
    """An owner named in the field or header ``name``, which only the service key may do. Raises
    ``service_key_required`` or ``validation_failed``."""
    if not writer.is_service:
        raise service_key_required_for_owner(name)
    return read_user_id(name, text)


def service_key_required_for_owner(name: str) -> ApiError:
    """The refusal of an owner in the field, member or header ``name``."""
    return service_key_required(f"Only the service key can set {name}.")


def may_see_owner(caller: Caller, row: ObjectRow) -> bool:
    """Whose an object is, its owner and the service key may know; ids of users are nobody else's business."""
    return caller.is_service or (caller.user is not None and UUID(caller.user.sub) == row.owner)


def read_user_id(name: str, value: object) -> UUID:
    """The id of a user in the member or header ``name``. Raises ``validation_failed``."""
    try:
        return UUID(require_text(name, value))
    except ValueError:
        raise validation_failed({name: "must be the id of a user"}) from None


def is_owner_only(rules: BucketRules, writer: Writer) -> bool:
    """Whether ``writer`` may change only objects of their own: nobody may change what they may not see. The service
    key passes this rule."""
    return (rules.owner_only_writes or rules.owner_only_reads) and not writer.is_service


def check_write(rules: BucketRules, row: ObjectRow | None, writer: Writer, conditions: Conditions) -> None:
    """Whether ``writer`` may replace, move or delete the object ``row``, or make one where there is none.

    Raises ``not_owner``, ``object_exists`` or ``precondition_failed``.
    """
    if row is None:
        if conditions.if_match is not None:
            raise errors.precondition_failed()
        return
    if is_owner_only(rules, writer) and row.owner != writer.user_id:
        raise errors.not_owner()
    excluded = conditions.if_none_match or ()
    if "*" in excluded:
        raise errors.object_exists()
    matches = conditions.if_match is None or not {"*", row.etag}.isdisjoint(conditions.if_match)
    if row.etag in excluded or not matches or not conditions.unmodified(row):
        raise errors.precondition_failed()
