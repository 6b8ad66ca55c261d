"""Who may do what to the objects of a bucket. Pure.

This is the one place where that is decided, before any byte moves. The database decides again within the transaction
of a change (``storage.refusal`` and ``storage.sees``, see ``postgres``), so that nobody comes between the check and
the change. The contract suite in ``tests/contracts/storage`` holds both to the same answers.
"""

from __future__ import annotations

from uuid import UUID

from project_service.errors import (
    authentication_required,
    require_text,
    service_key_required,
    validation_failed,
)
from project_service.http.caller import Caller
from project_service.storage import errors
from project_service.storage.values import Bucket, BucketRules, Conditions, ObjectRow, Writer


def check_read(caller: Caller, bucket: Bucket) -> UUID | None:
    """List, download and presign: anyone with a project key where the bucket is public.

    Returns what ``only_owner`` returns. Raises ``authentication_required``.
    """
    if not bucket.public and not caller.signed_in:
        raise authentication_required()
    return only_owner(bucket.rules, writer_of(caller)) if bucket.rules.owner_only_reads else None


def check_anonymous_read(bucket: Bucket) -> UUID | None:
    """A download by anybody, without any key: where the bucket is public and has ``anonymous_reads``.

    Returns what ``check_read`` returns. Raises ``object_not_found``, so that nobody learns which buckets there are.
    """
    if not bucket.rules.anonymous_reads:
        raise errors.object_not_found()
    return check_read(Caller(), bucket)


def only_owner(rules: BucketRules, writer: Writer) -> UUID | None:
    """The user whose objects alone ``writer`` may see; None: all objects. The service key passes this rule."""
    return writer.user_id if rules.owner_only_reads and not writer.is_service else None


def visible(row: ObjectRow | None, owner: UUID | None) -> ObjectRow | None:
    """``row``, or None if only the objects of ``owner`` may be seen and it is not one of them: an object that may not
    be seen is treated as if there were none."""
    return row if row is None or owner is None or row.owner == owner else None


def writer_of(caller: Caller, owner: str | None = None) -> Writer:
    """The caller of a request that changes objects: always a signed-in end user or the service key.

    ``owner`` is the header ``X-Object-Owner``: the user to whom what is written is to belong. Raises
    ``authentication_required``, and what ``parse_owner`` raises.
    """
    if not caller.signed_in:
        raise authentication_required()
    writer = Writer(caller.user_id, caller.is_service)
    return writer if owner is None else Writer(parse_owner(owner, writer, "X-Object-Owner"), True)


def parse_owner(text: str, writer: Writer, name: str = "owner") -> UUID:
    """An owner named in the field or header ``name``, which only the service key may do. Raises
    ``service_key_required`` or ``validation_failed``."""
    if not writer.is_service:
        raise service_key_required(f"Only the service key can set {name}.")
    return read_user_id(name, text)


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
