"""The next part of ``storage_machine``: links for downloads and for uploads, which are listed and revoked."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import urlencode, urlsplit

from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from tests.fakes.common import Response
from tests.models.storage import Caller, Condition, Link, Rules, Stored, Terms
from tests.models.storage_machine_objects import METHODS, ObjectsMachine
from tests.models.storage_world import (
    CALLERS,
    NAMES,
    PAYLOADS,
    RULES,
    TYPES,
    WRITERS,
    code,
    guessed,
    part,
    sent_condition,
)

LIFETIMES = st.sampled_from([1, 60, 7200])
TIMES = st.sampled_from([1, 2])
PREFIXES = st.sampled_from(["", "b", "b/"])
TERMS = st.builds(
    Terms,
    st.booleans(),
    st.sampled_from([None, None, 60]),
    st.sampled_from([None, None, ("image/*",)]),
    st.booleans(),
)
# What the uploader chooses of the key, None: nothing.
RESTS = st.sampled_from(["a", "c", "d.png", "d.png", "/c", "", None])
# A link that never replaces an object.
NEW_ONLY = Condition("If-None-Match", "*")


class LinksMachine(ObjectsMachine):
    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        # All that were made, also those that have been revoked or whose bucket is gone.
        self.links: dict[str, Link] = {}

    @initialize(data=st.data(), rules=RULES, private_rules=RULES)
    def begin(self, data: st.DataObject, rules: Rules, private_rules: Rules) -> None:
        super().begin(data, rules, private_rules)
        for _ in range(3):
            self.presign(data, data.draw(WRITERS), 2, 7200)
            self.presign_an_upload(data, data.draw(WRITERS), 7200, data.draw(TERMS))

    def token(self, data: st.DataObject, uploads: bool) -> str:
        """That of a link, rather of one that was made lately."""
        known = [token for token, link in self.links.items() if (link.upload is not None) == uploads]
        return data.draw(st.sampled_from(known[-3:]) | st.sampled_from(known))

    def has_links(self, uploads: bool) -> bool:
        return any((link.upload is not None) == uploads for link in self.links.values())

    def presigned(
        self, caller: Caller, bucket: str, seconds: int, body: dict[str, Any], refusals: set[str]
    ) -> tuple[str, str, float] | None:
        """Token, id and expiry of a new link."""
        lifetime = seconds * self.world.lifetime_factor
        path = f"/storage/buckets/{self.world.prefix}{bucket}/presign"
        answer = self.call(caller, "POST", path, {**body, "expires_in_seconds": lifetime})
        if self.refused(answer, refusals):
            return None
        made = json.loads(answer.body)
        token = urlsplit(made["url"]).query.removeprefix("token=")
        return token, made["id"], self.world.now() + lifetime

    def add_link(self, token: str, link: Link) -> None:
        self.links[token] = self.model.links[token] = link

    # Downloads

    @rule(data=st.data(), caller=CALLERS, uses=st.integers(0, 2), seconds=LIFETIMES)
    def presign(self, data: st.DataObject, caller: Caller, uses: int, seconds: int) -> None:
        bucket, key = self.bucket_and_key(data)
        missing = {"object_not_found"} if self.model.seen(caller, bucket, key) is None else set()
        refusals = self.model.unreadable(caller, bucket) or missing
        made = self.presigned(caller, bucket, seconds, {"key": key, "uses": uses}, refusals)
        if made is not None:
            token, link_id, expires = made
            hides = self.model.buckets[bucket].rules.owner_only_reads and not caller.is_service
            owner = caller.user if hides else None
            self.add_link(token, Link(link_id, bucket, key, caller, expires, uses or None, owner))

    @precondition(lambda self: self.has_links(uploads=False))
    @rule(data=st.data(), method=METHODS)
    def follow_a_link(self, data: st.DataObject, method: str) -> None:
        token = self.token(data, uploads=False)
        link, spent = self.links[token], self.model.spent(token, self.world.now())
        there, now = self.model.linked(link), self.world.now()
        headers, expected = self.reading(data, method, link.bucket, link.key, there)
        continues = there is not None and link.continues(headers, expected, there.etag, now)
        answer = self.world.request(method, f"/storage/download?token={token}", headers, None)
        if spent and not (continues and spent == "token_used"):
            assert answer.status == 410 if token in self.model.links else 404, answer
            assert method == "HEAD" or code(answer) == spent
            return
        self.read(answer, method, there, expected)
        if answer.status in (200, 206):
            assert there is not None
            self.check_caching(answer.header("Cache-Control") or "", link, there)
            if method == "GET" and not continues:
                link.continued_until = now + 600
                link.use()

    def check_caching(self, caching: str, link: Link, there: Stored) -> None:
        """What is sent by a link for any number of downloads may be kept as long as it works."""
        kept = self.model.kept(link.bucket, there)
        if link.uses is not None:
            assert caching == "no-store"
        elif kept == 0:
            assert caching == "private, no-store"
        else:
            seconds = int(caching.removeprefix("private, max-age="))
            left = link.expires - self.world.now()
            assert seconds == kept if kept and kept < left else left - 1 <= seconds <= left + 1, caching

    # Uploads

    @rule(data=st.data(), caller=CALLERS, seconds=LIFETIMES, terms=TERMS)
    def presign_an_upload(self, data: st.DataObject, caller: Caller, seconds: int, terms: Terms) -> None:
        bucket, key = self.bucket_and_key(data)
        refusals = self.model.unwritable(caller, bucket)
        if terms.by_prefix:
            key = data.draw(PREFIXES)
        elif not refusals:
            refusals = self.model.unchangeable(caller, bucket, key, narrowed(terms, Condition()))
        body: dict[str, Any] = {"method": "PUT", "key_prefix" if terms.by_prefix else "key": key}
        body |= {} if terms.max_bytes is None else {"max_bytes": terms.max_bytes}
        body |= {} if terms.content_types is None else {"content_types": list(terms.content_types)}
        body |= {"overwrite": True} if terms.overwrite else {}
        made = self.presigned(caller, bucket, seconds, body, refusals)
        if made is not None:
            token, link_id, expires = made
            self.add_link(token, Link(link_id, bucket, key, caller, expires, 1, upload=terms))

    def upload_link(self, data: st.DataObject) -> tuple[str, Link, str | None]:
        """Token and link, and what to choose of the key: by a link for a key rather nothing, or that key."""
        token = self.token(data, uploads=True)
        link = self.links[token]
        assert link.upload is not None
        same = st.sampled_from([None, None, link.key])
        return token, link, data.draw(RESTS if link.upload.by_prefix else same | same | RESTS)

    @precondition(lambda self: self.has_links(uploads=True))
    @rule(data=st.data(), payload=PAYLOADS, kind=TYPES, times=TIMES)
    def put_by_a_link(self, data: st.DataObject, payload: bytes, kind: str, times: int) -> None:
        token, link, rest = self.upload_link(data)
        key, wrong = chosen(link, rest)
        condition = self.condition(data, link.bucket, key)
        headers = {**sent_condition(condition), **({"Content-Type": kind} if kind else {})}
        kind = kind or guessed(key)
        for _ in range(times):
            refusals = self.not_by_link(token, key, payload, kind, condition, wrong)
            answer = self.world.request("PUT", upload_path(token, rest), headers, payload)
            self.uploaded_by_link(answer, token, key, payload, kind, refusals)

    @precondition(lambda self: self.has_links(uploads=True))
    @rule(data=st.data(), payload=PAYLOADS, last=st.booleans(), times=TIMES)
    def send_a_form_by_a_link(self, data: st.DataObject, payload: bytes, last: bool, times: int) -> None:
        token, link, rest = self.upload_link(data)
        # Without the field a link for a prefix takes the name of the file.
        by_name = rest is None and link.upload is not None and link.upload.by_prefix
        key, wrong = chosen(link, "x" if by_name else rest)
        condition = self.condition(data, link.bucket, key)
        headers = {**sent_condition(condition), "Content-Type": "multipart/form-data; boundary=-"}
        fields = [] if rest is None else [part('name="key"', rest.encode())]
        fields.append(part('name="file"; filename="x"', payload))
        body = b"".join(reversed(fields) if last else fields) + b"-----\r\n"
        for _ in range(times):
            refusals = self.not_by_link(token, key, payload, guessed(key), condition, wrong)
            answer = self.world.request("POST", upload_path(token), headers, body)
            self.uploaded_by_link(answer, token, key, payload, guessed(key), refusals, created=True)

    def not_by_link(
        self, token: str, key: str, payload: bytes, kind: str, condition: Condition, wrong: set[str]
    ) -> set[str]:
        """Why an upload by the link is refused; ``wrong`` is what is wrong with its key."""
        link, spent = self.links[token], self.model.spent(token, self.world.now())
        if spent:
            return {spent}
        assert link.upload is not None
        condition = narrowed(link.upload, condition)
        refusals = wrong | link.upload.not_taken(len(payload), kind)
        return refusals | self.model.unchangeable(link.signer, link.bucket, key, condition)

    def uploaded_by_link(
        self,
        answer: Response,
        token: str,
        key: str,
        payload: bytes,
        kind: str,
        refusals: set[str],
        created: bool = False,
    ) -> None:
        """It is as if who made the link had uploaded, once."""
        link = self.links[token]
        if self.model.spent(token, self.world.now()):
            assert answer.status == 410 if token in self.model.links else 404, answer
            assert code(answer) in refusals
            return
        self.uploaded(answer, link.signer, link.bucket, key, payload, kind, refusals, created)
        if not code(answer):
            assert answer.header("Referrer-Policy") == "no-referrer"
            link.use()

    @precondition(lambda self: self.has_links(uploads=True) and len(self.held) < 3)
    @rule(data=st.data(), payload=PAYLOADS.filter(bool))
    def begin_an_upload_by_a_link(self, data: st.DataObject, payload: bytes) -> None:
        """What comes of it is up to ``finish``."""
        token, link, rest = self.upload_link(data)
        key, wrong = chosen(link, rest)
        condition = self.condition(data, link.bucket, key)
        kind = guessed(key)
        early = self.not_by_link(token, key, payload, kind, condition, wrong)
        if link.bucket in self.model.buckets:
            early |= self.model.not_taken(link.bucket, key, len(payload), kind)
        assert link.upload is not None
        self.hold(
            upload_path(token, rest),
            sent_condition(condition),
            link.signer,
            link.bucket,
            key,
            payload,
            narrowed(link.upload, condition),
            early,
            token,
        )

    @precondition(lambda self: self.links)
    @rule(data=st.data(), uploads=st.booleans())
    def confuse_the_methods(self, data: st.DataObject, uploads: bool) -> None:
        if self.has_links(uploads):
            token = self.token(data, uploads)
            method, path = (
                ("GET", f"/storage/download?token={token}") if uploads else ("PUT", upload_path(token))
            )
            answer = self.world.request(method, path, {}, None if uploads else b"x")
            assert (answer.status, code(answer)) == (404, "token_not_found")

    # Listing and revoking

    @rule(caller=CALLERS, bucket=NAMES, limit=st.integers(1, 4))
    def list_links(self, caller: Caller, bucket: str, limit: int) -> None:
        path = f"/storage/buckets/{self.world.prefix}{bucket}/links"
        query, shown = {"limit": str(limit)}, []
        while True:
            answer = self.call(caller, "GET", f"{path}?{urlencode(query)}")
            if self.refused(answer, self.model.unwritable(caller, bucket)):
                return
            page = json.loads(answer.body)
            shown += page["links"]
            assert len(page["links"]) == limit or page["next_token"] is None
            if page["next_token"] is None:
                break
            query["page_token"] = page["next_token"]
        times = [(one.pop("created_at"), one["id"]) for one in shown]
        assert times == sorted(times, reverse=True)
        current = [one for one in self.model.links_of(caller, bucket) if one.expires > self.world.now()]
        expected = {one.id: self.shown(one) for one in current}
        for one in shown:
            del one["expires_at"]
            one["used_at"] = one["used_at"] is not None
        assert {one["id"]: one for one in shown} == expected
        assert len(shown) == len(expected)

    def shown(self, link: Link) -> dict[str, Any]:
        user = link.signer.user
        created_by = None if user is None else self.world.user_id(user)
        return {**link.shown(), "created_by": created_by, "used_at": link.was_used}

    @precondition(lambda self: self.links)
    @rule(data=st.data(), caller=CALLERS, uploads=st.booleans(), elsewhere=st.none() | NAMES)
    def revoke(self, data: st.DataObject, caller: Caller, uploads: bool, elsewhere: str | None) -> None:
        if not self.has_links(uploads):
            return
        token = self.token(data, uploads)
        link = self.links[token]
        bucket = elsewhere or link.bucket
        path = f"/storage/buckets/{self.world.prefix}{bucket}/links/{link.id}"
        answer = self.call(caller, "DELETE", path)
        refusals = self.model.unwritable(caller, bucket)
        if not refusals and link not in self.model.links_of(caller, bucket):
            refusals = {"link_not_found"}
        if not self.refused(answer, refusals):
            assert answer.status == 204
            del self.model.links[token]


def narrowed(terms: Terms, condition: Condition) -> Condition:
    return condition if terms.overwrite else NEW_ONLY


def chosen(link: Link, rest: str | None) -> tuple[str, set[str]]:
    """The key, and why it cannot be that. ``rest`` None: nothing was sent."""
    if link.upload is not None and link.upload.by_prefix:
        if rest is None:
            return link.key, {"validation_failed"}
        key = link.key + rest
        wrong = not rest or key.startswith("/") or "//" in key
        return key, {"invalid_key"} if wrong else set()
    return link.key, set() if rest in (None, link.key) else {"invalid_key"}


def upload_path(token: str, rest: str | None = None) -> str:
    query = {"token": token} if rest is None else {"token": token, "key": rest}
    return f"/storage/upload?{urlencode(query)}"
