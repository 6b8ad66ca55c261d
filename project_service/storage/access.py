"""Who may do what to a bucket's objects. Pure."""

from __future__ import annotations

from uuid import UUID

from project_service import errors
from project_service.http.caller import Caller
from project_service.storage.model import Bucket, Writer


def check_read(caller: Caller, bucket: Bucket) -> None:
    """Listing, downloading and presigning: anyone with a project key where the bucket is public."""
    if not bucket.public and not caller.signed_in:
        raise errors.authentication_required()


def writer_of(caller: Caller) -> Writer:
    """Writing always needs a signed-in end user or the service key; raises ``authentication_required``."""
    if not caller.signed_in:
        raise errors.authentication_required()
    user_id = None if caller.user is None else UUID(caller.user.sub)
    return Writer(user_id, caller.is_service)
