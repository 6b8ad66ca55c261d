"""Runs Schemathesis on a narrowed document. It blocks, so it needs a thread of its own."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import requests
import schemathesis
from attrs import Factory, define
from schemathesis.engine import events, from_schema

from tests.live.service.openapi_cases import BUCKETS, PASSWORD, READ_KEYS, Json

SEED = 20261121
# The service sends 501 only because of its configuration. Any kind of refusal is accepted.
_REFUSALS = ["4xx", "501"]
_CHECKS = {
    "not_a_server_error": {"expected-statuses": ["2xx", "3xx", *_REFUSALS]},
    "negative_data_rejection": {"expected-statuses": _REFUSALS},
    "status_code_conformance": {},
    "content_type_conformance": {},
    "response_schema_conformance": {},
    "response_headers_conformance": {},
}


@define
class Found:
    """The result: ``faults`` with what is needed to reproduce them, and the ``answers`` counted by operation."""

    faults: list[str] = Factory(list)
    answers: dict[str, Counter[int]] = Factory(dict)

    def add(self, scenario: events.ScenarioFinished) -> None:
        recorder = scenario.recorder
        for interaction in recorder.interactions.values():
            if interaction.response is not None:
                counted = self.answers.setdefault(scenario.label or "", Counter())
                counted[interaction.response.status_code] += 1
        for case_id, checks in recorder.checks.items():
            sent = recorder.interactions.get(case_id)
            response = None if sent is None else sent.response
            if response is None or _is_beside_the_point(recorder.cases[case_id].value, response):
                continue
            for check in checks:
                if check.failure_info is not None:
                    failure = check.failure_info.failure
                    body = response.content or b""
                    self.faults.append(
                        f"{scenario.label}: {failure.title}: {failure.message}\n"
                        f"  {check.failure_info.code_sample}\n  {body[:300]!r}"
                    )


def _is_beside_the_point(case: Any, response: Any) -> bool:
    # OpenAPI cannot say that a body is there only where Prefer asks for it.
    if response.status_code == 201 and not response.content:
        return True
    # It is sent unencoded and ends the path, which then is another one.
    return any("?" in str(value) for value in (case.path_parameters or {}).values())


def fuzz(document: Json, base_url: str, anon_key: str, service_key: str, examples: int) -> Found:
    """Sends all cases at the limits of the schemas, then ``examples`` random ones for each operation.

    The service key, a signed-in user and the anon key alone take turns (``_Callers``).
    """
    config = schemathesis.Config.from_dict(
        {
            "base-url": base_url,
            "seed": SEED,
            "continue-on-failure": True,
            "generation": {"max-examples": examples, "no-shrink": True},
            "cache": {"enabled": False},
            "checks": {
                "enabled": False,
                **{name: {"enabled": True, **more} for name, more in _CHECKS.items()},
            },
            "phases": {
                "examples": {"enabled": False},
                "coverage": {"unexpected-methods": []},
                "stateful": {"enabled": False},
            },
            # These differ from GET only in what the edge does, which is the same for all.
            "operations": [
                {"include-method": ["HEAD", "OPTIONS"], "phases": {"coverage": {"enabled": False}}}
            ],
        }
    )
    schema = schemathesis.openapi.from_dict(document, config=config)
    _sign(schema, _Callers(base_url, anon_key, service_key))
    found = Found()
    for event in from_schema(schema).execute():
        if isinstance(event, events.ScenarioFinished):
            found.add(event)
        elif isinstance(event, events.NonFatalError):
            found.faults.append(f"{event.label}: {event.value}")
        elif isinstance(event, events.FatalError):
            raise event.exception
    return found


class _Callers:
    """Chooses the caller of each case, in turn, and restores what a case needs and another has deleted or ended."""

    def __init__(self, base_url: str, anon_key: str, service_key: str) -> None:
        self._base_url = base_url
        self._anon, self._service = {"X-Service-Key": anon_key}, {"X-Service-Key": service_key}
        self._numbers = itertools.count()
        self._session = requests.Session()
        self._asked: Counter[str] = Counter()
        self._moved = False
        self._user = self._signed_in()

    def next(self, operation: Json) -> dict[str, str]:
        """The next caller: mostly one with enough rights, so that most cases are not refused at once."""
        name = operation["operationId"]
        if self._moved:
            self._put_back()
        self._moved = name == "moveObject"
        turns = self._turns(name, operation["security"])
        number = self._asked[name]
        self._asked[name] += 1
        return turns[number % len(turns)]

    def _turns(self, name: str, security: list[Json]) -> tuple[dict[str, str], ...]:
        if security == [{"serviceKey": []}]:
            return (*[self._service] * 4, self._user)
        # These operations end the session that they are called with.
        user = self._signed_in() if name in ("logOut", "deleteUser", "endSession") else self._user
        if {"userToken": []} in security:
            return (*[user] * 4, self._anon)
        return self._service, user, self._anon

    def _signed_in(self) -> dict[str, str]:
        email = f"fuzz-{next(self._numbers)}@example.test"
        url = f"{self._base_url}/auth/signup"
        made = self._session.post(url, json={"email": email, "password": PASSWORD}, timeout=30)
        return {**self._anon, "Authorization": f"Bearer {made.json()['data']['access_token']}"}

    def _put_back(self) -> None:
        for bucket, key in itertools.product(BUCKETS, READ_KEYS):
            url = f"{self._base_url}/storage/buckets/{bucket}/objects/{key}"
            self._session.put(url, data=b"hello", headers=self._service, timeout=30)


def _sign(schema: Any, callers: _Callers) -> None:
    @schema.auth(refresh_interval=None)
    class _Turns:
        def get(self, case: Any, context: Any) -> dict[str, str]:
            return callers.next(case.operation.definition.raw)

        def set(self, case: Any, headers: dict[str, str], context: Any) -> None:
            own = case.headers or {}
            kept = {name: value for name, value in own.items() if name.lower() not in _CREDENTIALS}
            case.headers = {**kept, **headers}


_CREDENTIALS = ("x-service-key", "apikey", "authorization")
