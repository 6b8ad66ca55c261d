"""Helpers for the contract suites of the rows of storage."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

import pytest
from twisted.internet.defer import Deferred, gatherResults

from project_service.errors import ApiError
from project_service.storage.assemble import Rows
from project_service.storage.values import (
    NO_DETAILS,
    BucketRules,
    Conditions,
    Details,
    NewObject,
    Switched,
    Writer,
)

ALICE = Writer(UUID(int=1))


BOB = Writer(UUID(int=2))


SERVICE = Writer(None, is_service=True)


ETAG = "e" * 32


async def bucket_b(rows: Rows) -> None:
    await rows.buckets.create("b", BucketRules())


async def put(
    rows: Rows,
    key: str,
    size: int = 1,
    writer: Writer = ALICE,
    conditions: Conditions | None = None,
    bucket: str = "b",
    link: bytes | None = None,
    details: Details = NO_DETAILS,
    sha256: str | None = None,
) -> Switched:
    version = uuid4()
    await rows.objects.reserve_uploads([version], bucket)
    new = NewObject(bucket, key, version, size, "text/plain", ETAG, details, sha256)
    return await rows.objects.put(new, writer, conditions or Conditions(), link)


async def refused(work: Any) -> str:
    with pytest.raises(ApiError) as caught:
        await work
    return caught.value.code


def together(*works: Any) -> Deferred[list[Any]]:
    async def outcome(work: Any) -> str:
        try:
            await work
        except ApiError as error:
            return error.code
        return "done"

    return gatherResults([Deferred.fromCoroutine(outcome(work)) for work in works])
