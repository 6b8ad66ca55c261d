"""The next part of ``storage_machine``: downloads, listings, copies, moves and deletions."""

from __future__ import annotations

import json
from hashlib import sha256
from typing import Any
from urllib.parse import quote, urlencode

from attrs import evolve
from hypothesis import strategies as st
from hypothesis.stateful import rule

from tests.fakes.common import Response
from tests.models.storage import AGES, RANGE_REFUSED, Caller, Details, Stored, ranged
from tests.models.storage_machine import StorageMachine
from tests.models.storage_world import CALLERS, DETAILS, KEYS, NAMES, SERVICE, code, sent_condition

SPECS = ["bytes=0-0", "bytes=40-", "bytes=-70", "bytes=0-1,3-4", "bytes=-0", "x=1"]
RANGES = st.none() | st.sampled_from(SPECS)
METHODS = st.sampled_from(["GET", "GET", "HEAD"])
TO_BUCKET = st.none() | NAMES
PREFIXES = st.sampled_from(["", "", "b", "b/", "b/c", "%", "nothing"])


class ObjectsMachine(StorageMachine):
    @rule(data=st.data(), caller=CALLERS, method=METHODS, inline=st.booleans())
    def download(self, data: st.DataObject, caller: Caller, method: str, inline: bool) -> None:
        bucket, key = self.bucket_and_key(data)
        there = self.model.seen(caller, bucket, key)
        headers, expected = self.reading(data, method, bucket, key, there)
        path = self.path(bucket, key) + ("?inline=true" if inline else "")
        answer = self.call(caller, method, path, headers=headers)
        refusals = self.model.unreadable(caller, bucket)
        if refusals:
            assert answer.status in (401, 404)
            assert method == "HEAD" or code(answer) in refusals
            return
        self.read(answer, method, there, expected)
        if there is not None and answer.status < 300:
            assert answer.header("Cache-Control") == self.model.caching(bucket, there, to_all=False)
            assert (answer.header("Content-Disposition") or "").startswith(
                "inline" if inline else "attachment"
            )

    @rule(data=st.data(), method=METHODS)
    def see_a_public_page(self, data: st.DataObject, method: str) -> None:
        bucket, key = self.bucket_and_key(data)
        there = self.model.page(bucket, key)
        headers, expected = self.reading(data, method, bucket, key, there)
        path = f"/storage/public/{self.world.prefix}{bucket}/{quote(key)}"
        answer = self.world.request(method, path, headers, None)
        self.read(answer, method, there, expected)
        assert answer.header("Access-Control-Allow-Origin") == "*"
        if there is not None and answer.status < 300:
            disposition = answer.header("Content-Disposition") or ""
            assert disposition.startswith("inline" if there.content_type == "image/png" else "attachment")
            assert answer.header("Cache-Control") == self.model.caching(bucket, there)

    def reading(
        self, data: st.DataObject, method: str, bucket: str, key: str, there: Stored | None
    ) -> tuple[dict[str, str], int | tuple[int, int]]:
        """Headers, and what has to come of them: a status, or the first and last position of the bytes."""
        if there is None:
            return {}, 404
        condition = self.condition(data, bucket, key)
        headers = sent_condition(condition)
        outcome = 304 if condition.header == "If-None-Match" else 412
        if condition.refusal(there):
            return headers, outcome
        asked = data.draw(RANGES) if method == "GET" else None
        if asked is None:
            return headers, 200
        tag = data.draw(st.sampled_from(["", "", there.etag, "another"]))
        headers |= {"Range": asked, **({"If-Range": f'"{tag}"'} if tag else {})}
        wanted = ranged(asked, there.payload) if tag in ("", there.etag) else None
        if wanted == RANGE_REFUSED:
            return headers, 416
        return headers, wanted if isinstance(wanted, tuple) else 200

    def read(
        self, answer: Response, method: str, there: Stored | None, expected: int | tuple[int, int]
    ) -> None:
        status = expected if isinstance(expected, int) else 206
        assert answer.status == status, (answer, expected)
        if there is None:
            assert method == "HEAD" or code(answer) == "object_not_found"
            return
        if status in (200, 206, 304):
            assert answer.header("ETag") == f'"{there.etag}"'
        if status in (200, 206):
            assert answer.header("Content-Type") == there.content_type
            assert answer.header("Content-Language") == there.details.language
            assert answer.header("X-Content-Type-Options") == "nosniff"
            first, last = expected if isinstance(expected, tuple) else (0, len(there.payload) - 1)
            assert answer.header("Content-Length") == str(last + 1 - first)
            assert answer.body == (b"" if method == "HEAD" else there.payload[first : last + 1])
        if status in (206, 416):
            size = len(there.payload)
            given = "*" if isinstance(expected, int) else f"{expected[0]}-{expected[1]}"
            assert answer.header("Content-Range") == f"bytes {given}/{size}"

    # Listings

    @rule(caller=CALLERS, bucket=NAMES, prefix=PREFIXES, limit=st.integers(1, 4), recursive=st.booleans())
    def list_objects(self, caller: Caller, bucket: str, prefix: str, limit: int, recursive: bool) -> None:
        query = {"prefix": prefix, "max_keys": str(limit), "recursive": str(recursive).lower()}
        answer = self.call(caller, "GET", f"{self.path(bucket)}?{urlencode(query)}")
        if self.refused(answer, self.model.unreadable(caller, bucket)):
            return
        expected = self.model.listed(caller, bucket, prefix, recursive)
        while True:
            page = json.loads(answer.body)
            shown, expected = expected[:limit], expected[limit:]
            folders = [name for name in shown if (bucket, name) not in self.model.objects]
            assert page["folders"] == folders
            assert [timeless(one) for one in page["objects"]] == [
                self.metadata(bucket, key) for key in shown if key not in folders
            ]
            assert page["is_truncated"] == (page["next_token"] is not None) == bool(expected)
            if not expected:
                return
            more = urlencode({**query, "page_token": page["next_token"]})
            answer = self.call(caller, "GET", f"{self.path(bucket)}?{more}")

    # Changes

    @rule(data=st.data(), caller=CALLERS, onto=KEYS)
    def copy(self, data: st.DataObject, caller: Caller, onto: str) -> None:
        bucket, source = self.bucket_and_key(data)
        to = data.draw(TO_BUCKET) or bucket
        refusals, answer = self.to_another("copy", data, caller, bucket, source, to, onto)
        there = self.model.objects.get((bucket, source))
        refusals |= self.not_taken(caller, bucket, source, to, onto)
        if not self.refused(answer, refusals) and there is not None:
            assert answer.status == 201
            self.stored(answer, to, onto, there.payload, there.content_type, caller, there.details)
            self.described(self.call(SERVICE, "GET", f"{self.path(to, onto)}?info=true"), to, onto)

    @rule(data=st.data(), caller=CALLERS, onto=KEYS)
    def move(self, data: st.DataObject, caller: Caller, onto: str) -> None:
        bucket, source = self.bucket_and_key(data)
        to = data.draw(TO_BUCKET) or bucket
        refusals, answer = self.to_another("move", data, caller, bucket, source, to, onto)
        refusals |= self.model.unremovable(caller, bucket, source)
        if to != bucket:
            refusals |= self.not_taken(caller, bucket, source, to, onto)
        if not self.refused(answer, refusals):
            assert answer.status == 200
            there = self.model.objects.pop((bucket, source))
            owner = Caller(there.owner)
            self.stored(answer, to, onto, there.payload, there.content_type, owner, there.details)
            # In another bucket it is another version, of which nothing has been made.
            self.model.resized(to, onto, there.widths if to == bucket else ())
            self.described(self.call(SERVICE, "GET", f"{self.path(to, onto)}?info=true"), to, onto)

    def not_taken(self, caller: Caller, bucket: str, source: str, to: str, onto: str) -> set[str]:
        """Of several reasons any may be given, but none that tells of an object that the caller may not see."""
        there = self.model.objects.get((bucket, source))
        allowed = not self.model.unwritable(caller, bucket) and self.model.seen(caller, bucket, source)
        if not allowed or there is None or to not in self.model.buckets:
            return set()
        return self.model.not_taken(to, onto, len(there.payload), there.content_type)

    def to_another(
        self, how: str, data: st.DataObject, caller: Caller, bucket: str, source: str, to: str, onto: str
    ) -> tuple[set[str], Response]:
        """The answer, and why the object may not go there."""
        condition = self.condition(data, to, onto)
        path, body = f"/storage/buckets/{self.world.prefix}{bucket}/{how}", {"from": source, "to": onto}
        if to != bucket:
            body["to_bucket"] = f"{self.world.prefix}{to}"
        answer = self.call(caller, "POST", path, body, sent_condition(condition))
        refusals = self.model.unwritable(caller, bucket) | self.model.unwritable(caller, to)
        if not refusals:
            refusals = self.model.unchangeable(caller, to, onto, condition)
            refusals |= {"validation_failed"} if (source, bucket) == (onto, to) else set()
            refusals |= set() if self.model.seen(caller, bucket, source) else {"object_not_found"}
        return refusals, answer

    @rule(data=st.data(), caller=CALLERS, details=DETAILS)
    def change_details(self, data: st.DataObject, caller: Caller, details: Details) -> None:
        bucket, key = self.bucket_and_key(data)
        condition = self.condition(data, bucket, key)
        body = details.as_json()
        answer = self.call(caller, "PATCH", self.path(bucket, key), body, sent_condition(condition))
        if not self.refused(answer, self.model.unremovable(caller, bucket, key, condition)):
            assert answer.status == 200
            there = self.model.objects[bucket, key]
            self.model.objects[bucket, key] = evolve(there, details=details)
            self.described(answer, bucket, key)

    @rule(data=st.data(), caller=CALLERS)
    def show_details(self, data: st.DataObject, caller: Caller) -> None:
        bucket, key = self.bucket_and_key(data)
        answer = self.call(caller, "GET", f"{self.path(bucket, key)}?info=true")
        refusals = self.model.unreadable(caller, bucket)
        if not refusals and self.model.seen(caller, bucket, key) is None:
            refusals = {"object_not_found"}
        if not self.refused(answer, refusals):
            assert answer.status == 200
            self.described(answer, bucket, key)

    def described(self, answer: Response, bucket: str, key: str) -> None:
        there, shown = self.model.objects[bucket, key], json.loads(answer.body)
        details = there.details
        assert {name: shown[name] for name in details.as_json()} == details.as_json()
        assert shown["max_age_seconds"] == AGES.get(details.cache_control or "")
        assert shown["sha256"] == sha256(there.payload).hexdigest()

    @rule(data=st.data(), caller=CALLERS)
    def delete(self, data: st.DataObject, caller: Caller) -> None:
        bucket, key = self.bucket_and_key(data)
        condition = self.condition(data, bucket, key)
        answer = self.call(caller, "DELETE", self.path(bucket, key), headers=sent_condition(condition))
        refusals = self.model.unremovable(caller, bucket, key, condition)
        if not self.refused(answer, refusals):
            assert (answer.status, answer.body) == (204, b"")
            self.model.remove(bucket, [key])

    @rule(caller=CALLERS, bucket=NAMES, keys=st.lists(KEYS, min_size=1, max_size=4, unique=True))
    def delete_many(self, caller: Caller, bucket: str, keys: list[str]) -> None:
        path = f"/storage/buckets/{self.world.prefix}{bucket}/delete"
        answer = self.call(caller, "POST", path, {"keys": keys})
        refusals = self.model.unwritable(caller, bucket)
        if not refusals:
            seen = [key for key in keys if self.model.seen(caller, bucket, key)]
            refusals = set().union(*(self.model.unchangeable(caller, bucket, key) for key in seen))
        if not self.refused(answer, refusals):
            deleted = [key for key in keys if key in seen]
            missing = [key for key in keys if key not in seen]
            assert json.loads(answer.body) == {"deleted": deleted, "missing": missing}
            self.model.remove(bucket, deleted)


def timeless(shown: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in shown.items() if name != "last_modified"}
