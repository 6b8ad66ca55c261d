"""Storage in any order of requests, beside a model of what must come of them: buckets and uploads."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any
from urllib.parse import quote, urlencode

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.fakes.common import Response
from tests.models.storage import Bucket, Caller, Condition, Details, Model, Rules, Stored
from tests.models.storage_world import (
    CALLERS,
    CONDITIONS,
    DETAILS,
    KEYS,
    NAMES,
    PAYLOADS,
    RULES,
    SERVICE,
    TYPES,
    WRITERS,
    Held,
    World,
    code,
    guessed,
    part,
    sent_condition,
    sent_rules,
)

NO_DETAILS = Details()


class StorageMachine(RuleBasedStateMachine):
    """``world`` is new, and has no bucket of its prefix."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self.world = world
        self.model = Model()
        self.held: list[Held] = []
        self.made = 0

    def bucket_and_key(self, data: st.DataObject) -> tuple[str, str]:
        """A bucket and a key, more often those of an object."""
        known, any_object = list(self.model.objects), st.tuples(NAMES, KEYS)
        candidates = [any_object, *([st.sampled_from(known)] * 3 if known else [])]
        return data.draw(st.one_of(candidates))

    def call(
        self,
        caller: Caller,
        method: str,
        path: str,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
    ) -> Response:
        """``body`` is a document unless it is bytes."""
        sent = {**self.world.credentials(caller), **(headers or {})}
        if body is not None and not isinstance(body, bytes):
            sent["Content-Type"], body = "application/json", json.dumps(body).encode()
        return self.world.request(method, path, sent, body)

    def path(self, bucket: str, key: str | None = None) -> str:
        objects = f"/storage/buckets/{self.world.prefix}{bucket}/objects"
        return objects if key is None else f"{objects}/{quote(key)}"

    def refused(self, answer: Response, refusals: set[str] | frozenset[str]) -> bool:
        """Whether the request was refused, as it must be exactly if there are ``refusals``."""
        given = code(answer)
        assert given in (refusals or {""}), (answer, refusals)
        return bool(given)

    def condition(self, data: st.DataObject, bucket: str, key: str) -> Condition:
        """One that may hold for the object that is there now."""
        header, there = data.draw(CONDITIONS), self.model.objects.get((bucket, key))
        if header == "If-Unmodified-Since":
            changed = int(self.world.now()) if there is None else there.changed
            return Condition(header, seconds=changed - data.draw(st.sampled_from([0, 1])))
        known = ["*", "another"] if there is None else ["*", "another", there.etag, there.etag]
        return Condition(header, data.draw(st.sampled_from(known))) if header else Condition()

    def stored(
        self,
        answer: Response,
        bucket: str,
        key: str,
        payload: bytes,
        kind: str,
        caller: Caller,
        details: Details = NO_DETAILS,
    ) -> None:
        """``answer`` shows the metadata of an object that is in the store now."""
        shown = json.loads(answer.body)
        changed = datetime.fromisoformat(shown["last_modified"]).timestamp()
        assert abs(changed - self.world.now()) < 60
        there = self.model.objects.get((bucket, key))
        keeps_owner = there is not None and caller.is_service and caller.user is None
        owner = there.owner if keeps_owner and there is not None else caller.user
        self.model.objects[bucket, key] = Stored(payload, kind, owner, shown["etag"], int(changed), details)
        assert shown == {**self.metadata(bucket, key), "last_modified": shown["last_modified"]}

    def metadata(self, bucket: str, key: str) -> dict[str, Any]:
        one = self.model.objects[bucket, key]
        return {"key": key, "size": len(one.payload), "content_type": one.content_type, "etag": one.etag}

    @initialize(data=st.data(), rules=RULES, private_rules=RULES)
    def begin(self, data: st.DataObject, rules: Rules, private_rules: Rules) -> None:
        for name, wanted in (("open", rules), ("shut", private_rules)):
            self.create_bucket(name, name == "open", Rules())
            for _ in range(4):
                key, caller, payload = data.draw(KEYS), data.draw(WRITERS), data.draw(PAYLOADS)
                self.put_at(name, key, caller, payload, "", Condition(), data.draw(DETAILS))
            self.change_bucket(name, name == "open", wanted)

    # Buckets

    def administer(self, method: str, path: str, body: Any = None) -> Response:
        answer = self.call(SERVICE, method, f"/admin/buckets{path}", body)
        self.world.rules_changed()
        return answer

    @rule(name=NAMES, public=st.booleans(), rules=RULES)
    def create_bucket(self, name: str, public: bool, rules: Rules) -> None:
        bucket = Bucket(public, self.made, rules)
        body = {"name": self.world.prefix + name, **sent_rules(bucket)}
        refusals = {"bucket_exists"} if name in self.model.buckets else set()
        refusals |= rules.unfit(public)
        if not self.refused(self.administer("POST", "", body), refusals):
            self.model.buckets[name] = bucket
            self.made += 1

    @rule(name=NAMES, public=st.booleans(), rules=RULES)
    def change_bucket(self, name: str, public: bool, rules: Rules) -> None:
        there = self.model.buckets.get(name)
        changed = Bucket(public, -1 if there is None else there.number, rules)
        answer = self.administer("PATCH", f"/{self.world.prefix}{name}", sent_rules(changed))
        refusals = {"bucket_not_found"} if there is None else set()
        refusals |= rules.unfit(public)
        if not self.refused(answer, refusals):
            self.model.buckets[name] = changed

    @rule(name=NAMES, force=st.sampled_from([False, False, False, True]))
    def delete_bucket(self, name: str, force: bool) -> None:
        refusals = set() if name in self.model.buckets else {"bucket_not_found"}
        if self.model.of(name) and not force:
            refusals.add("bucket_not_empty")
        query = "?force=true" if force else ""
        if not self.refused(self.administer("DELETE", f"/{self.world.prefix}{name}{query}"), refusals):
            self.model.remove_bucket(name)

    @rule(name=NAMES, prefix=st.sampled_from(["b/", "b", "é"]))
    def delete_prefix(self, name: str, prefix: str) -> None:
        query = urlencode({"prefix": prefix})
        answer = self.administer("DELETE", f"/{self.world.prefix}{name}/objects?{query}")
        refusals = set() if name in self.model.buckets else {"bucket_not_found"}
        if not self.refused(answer, refusals):
            gone = [key for key in self.model.of(name) if key.startswith(prefix)]
            assert json.loads(answer.body) == {"deleted": len(gone)}
            self.model.remove(name, gone)

    @invariant()
    def buckets_are_shown_as_they_are(self) -> None:
        listed = json.loads(self.call(SERVICE, "GET", "/admin/buckets").body)["buckets"]
        mine = [one for one in listed if one["name"].startswith(self.world.prefix)]
        for one in mine:
            one["name"] = one["name"].removeprefix(self.world.prefix)
            del one["created_at"]
        assert mine == [self.model.shown(name) for name in sorted(self.model.buckets)]

    # Uploads

    @rule(data=st.data(), caller=CALLERS, payload=PAYLOADS, kind=TYPES, details=DETAILS)
    def put(self, data: st.DataObject, caller: Caller, payload: bytes, kind: str, details: Details) -> None:
        bucket, key = self.bucket_and_key(data)
        self.put_at(bucket, key, caller, payload, kind, self.condition(data, bucket, key), details)

    def put_at(
        self,
        bucket: str,
        key: str,
        caller: Caller,
        payload: bytes,
        kind: str,
        condition: Condition,
        details: Details = NO_DETAILS,
    ) -> None:
        headers = {**sent_condition(condition), **({"Content-Type": kind} if kind else {})}
        headers |= details.as_headers()
        answer = self.call(caller, "PUT", self.path(bucket, key), payload, headers)
        refusals = self.model.unchangeable(caller, bucket, key, condition)
        self.uploaded(answer, caller, bucket, key, payload, kind or guessed(key), refusals, details=details)

    @rule(data=st.data(), caller=CALLERS, payload=PAYLOADS, last=st.booleans())
    def send_form(self, data: st.DataObject, caller: Caller, payload: bytes, last: bool) -> None:
        bucket, key = self.bucket_and_key(data)
        condition = self.condition(data, bucket, key)
        headers = {**sent_condition(condition), "Content-Type": "multipart/form-data; boundary=-"}
        parts = [part('name="key"', key.encode()), part('name="file"; filename="x"', payload)]
        body = b"".join(reversed(parts) if last else parts) + b"-----\r\n"
        answer = self.call(caller, "POST", self.path(bucket), body, headers)
        refusals = self.model.unchangeable(caller, bucket, key, condition)
        assert answer.status in (201, 400, 401, 403, 404, 412, 413, 415)
        self.uploaded(answer, caller, bucket, key, payload, guessed(key), refusals, created=True)

    def uploaded(
        self,
        answer: Response,
        caller: Caller,
        bucket: str,
        key: str,
        payload: bytes,
        kind: str,
        refusals: set[str],
        created: bool = False,
        details: Details = NO_DETAILS,
    ) -> None:
        if bucket in self.model.buckets:
            refusals = refusals | self.model.not_taken(bucket, key, len(payload), kind)
        if not self.refused(answer, refusals):
            replaced = (bucket, key) in self.model.objects and not created
            assert answer.status == (200 if replaced else 201)
            self.stored(answer, bucket, key, payload, kind, caller, details)

    @precondition(lambda self: len(self.held) < 3)
    @rule(data=st.data(), caller=WRITERS, payload=PAYLOADS.filter(bool))
    def begin_upload(self, data: st.DataObject, caller: Caller, payload: bytes) -> None:
        bucket, key = self.bucket_and_key(data)
        condition = self.condition(data, bucket, key)
        early = self.model.unchangeable(caller, bucket, key, condition)
        if bucket in self.model.buckets:
            early |= self.model.not_taken(bucket, key, len(payload), guessed(key))
        headers = {**self.world.credentials(caller), **sent_condition(condition)}
        self.hold(self.path(bucket, key), headers, caller, bucket, key, payload, condition, early)

    def hold(
        self,
        path: str,
        headers: dict[str, str],
        caller: Caller,
        bucket: str,
        key: str,
        payload: bytes,
        condition: Condition,
        early: set[str],
        token: str = "",
    ) -> None:
        """Send half of an upload."""
        request = self.world.begin("PUT", path, {**headers, "Content-Length": str(len(payload))})
        request.send(payload[: len(payload) // 2])
        number = self.model.buckets[bucket].number if bucket in self.model.buckets else -1
        since, kind = self.world.now(), guessed(key)
        self.held.append(
            Held(
                since,
                request,
                caller,
                bucket,
                number,
                key,
                payload,
                kind,
                condition,
                frozenset(early),
                token,
            )
        )

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def finish_upload(self, data: st.DataObject) -> None:
        self.finish(self.held.pop(data.draw(st.integers(0, len(self.held) - 1))))

    def finish(self, one: Held) -> None:
        """The rules hold that are in force at the end; what was refused at the beginning may be refused still."""
        one.request.send(one.payload[len(one.payload) // 2 :])
        answer = one.request.answer()
        bucket = self.model.buckets.get(one.bucket)
        if bucket is None or bucket.number != one.number:
            assert code(answer) in {"bucket_not_found", *one.early}, (answer, one)
            return
        late = self.model.unchangeable(one.caller, one.bucket, one.key, one.condition)
        late |= self.model.not_taken(one.bucket, one.key, len(one.payload), one.content_type)
        # An upload that began before its link expired may end afterwards.
        late |= {self.model.spent(one.token, one.since)} - {""} if one.token else set()
        if code(answer) in one.early - late:
            return
        self.uploaded(answer, one.caller, one.bucket, one.key, one.payload, one.content_type, late)
        if one.token and not code(answer):
            self.model.links[one.token].use()

    @rule(data=st.data(), caller=WRITERS, payload=PAYLOADS.filter(bool), public=st.booleans(), rules=RULES)
    def change_a_bucket_during_an_upload(
        self, data: st.DataObject, caller: Caller, payload: bytes, public: bool, rules: Rules
    ) -> None:
        """The bucket may even be another one of its name."""
        self.begin_upload(data, caller, payload)
        held = self.held.pop()
        if data.draw(st.booleans()):
            self.delete_bucket(held.bucket, True)
            self.create_bucket(held.bucket, public, rules)
        else:
            self.change_bucket(held.bucket, public, rules)
        self.finish(held)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def leave_an_upload(self, data: st.DataObject) -> None:
        self.held.pop(data.draw(st.integers(0, len(self.held) - 1))).request.hang_up()
