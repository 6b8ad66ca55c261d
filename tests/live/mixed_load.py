"""A modest load on all three parts. It records what was acknowledged, and asks for it afterwards."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from hashlib import sha256
from itertools import pairwise
from random import Random
from time import monotonic, sleep
from types import TracebackType
from typing import Any, Self
from uuid import uuid4

import requests
from attrs import define, field, frozen

PARTS = ("storage", "tables", "auth")
ROWS = "/dev/db/main/rest/ledger"
LEDGER = "create table if not exists public.ledger (id uuid primary key, n integer not null)"
PASSWORD = "correct horse 7"
# No timeout configured in the tests is longer, so a request that takes this long hangs.
HANGING_SECONDS = 20.0
# Between two requests of one client: a load, not a flood.
PACE_SECONDS = 0.01
AFTER_FAILURE_SECONDS = 0.05
VERIFYING_SECONDS = 60.0


@frozen
class Keys:
    """The project keys."""

    anon: str
    service: str


@define
class Tally:
    """The requests to one part, and how they ended."""

    sent: int = 0
    acknowledged: int = 0
    refused: int = 0  # 503 or 504 with Retry-After
    refusals: deque[str] = field(factory=lambda: deque(maxlen=20))  # what the last of them said
    broken: int = 0  # the connection ended without an answer
    wrong: list[str] = field(factory=list)
    longest: float = 0.0
    acknowledged_at: list[float] = field(factory=list)

    def outage(self, since: float) -> float:
        """The longest time without an acknowledgement after ``since``."""
        times = [since, *(at for at in self.acknowledged_at if at > since)]
        return max((later - earlier for earlier, later in pairwise(times)), default=0.0)


class Threads:
    """Threads that run as long as the context, or until ``stop``. They have to check whether it has ``ended``."""

    def __init__(self, works: Iterable[Callable[[], None]]) -> None:
        self._done = threading.Event()
        self._threads = [threading.Thread(target=work) for work in works]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        self._done.set()
        for thread in self._threads:
            thread.join()

    @property
    def ended(self) -> bool:
        return self._done.is_set()

    def pause(self, seconds: float) -> None:
        self._done.wait(seconds)


class Load(Threads):
    """The load. ``base_url`` may be changed meanwhile, if a service comes back at another address. ``more`` are parts
    with clients of their own."""

    def __init__(
        self,
        base_url: str,
        keys: Keys,
        clients: int = 2,
        pace: float = PACE_SECONDS,
        more: Mapping[str, type[Client]] | None = None,
    ) -> None:
        self.base_url = base_url
        self.keys = keys
        self.pace = pace
        self._lock = threading.Lock()
        parts: dict[str, type[Client]] = {
            "storage": _Objects,
            "tables": _Rows,
            "auth": _Accounts,
            **(more or {}),
        }
        self.tallies = {part: Tally() for part in parts}
        self.objects: dict[str, str] = {}
        self.recent_objects: deque[tuple[str, str]] = deque(maxlen=200)
        self.rows: set[str] = set()
        self.accounts: list[str] = []
        self._clients = [
            kind(self, part, number)
            for part, kind in parts.items()
            for number in range(1 if part == "auth" else clients)
        ]
        super().__init__(one.run for one in self._clients)

    @property
    def headers(self) -> dict[str, str]:
        return {"X-Service-Key": self.keys.service}

    def count(self, part: str, what: str) -> int:
        counted: int = getattr(self.tallies[part], what)
        return counted

    def acknowledged(self) -> dict[str, int]:
        return {part: tally.acknowledged for part, tally in self.tallies.items()}

    def stored(self, key: str, digest: str) -> None:
        self.objects[key] = digest
        self.recent_objects.append((key, digest))

    def has_gone_on(self, before: dict[str, int], more: int = 5) -> bool:
        """Whether every part has acknowledged ``more`` requests than ``before``."""
        return all(count >= before[part] + more for part, count in self.acknowledged().items())

    def record(self, part: str, begun: float, outcome: str, remember: Callable[[], None]) -> None:
        now = monotonic()
        with self._lock:
            tally = self.tallies[part]
            tally.sent += 1
            tally.longest = max(tally.longest, now - begun)
            if outcome == "acknowledged":
                tally.acknowledged += 1
                tally.acknowledged_at.append(now)
                remember()
            elif outcome in {"refused", "broken"}:
                setattr(tally, outcome, getattr(tally, outcome) + 1)
            else:
                tally.wrong.append(outcome)

    def wrong(self) -> list[str]:
        """The responses that are neither a success nor a proper refusal, and the requests that hung."""
        return [f"{part}: {text}" for part, tally in self.tallies.items() for text in tally.wrong]

    def lost(self) -> list[str]:
        """What was acknowledged and is not there now. Call it after ``stop``."""
        others = [text for client in self._clients for text in client.lost()]
        return [*self._lost_objects(), *self._lost_rows(), *self._lost_accounts(), *others]

    def _lost_objects(self) -> list[str]:
        lost = []
        with requests.Session() as session:
            for key, digest in self.objects.items():
                url = f"{self.base_url}/storage/buckets/private/objects/{key}"
                got = settled(session.get, url, headers=self.headers)
                if got.status_code != 200 or sha256(got.content).hexdigest() != digest:
                    lost.append(
                        f"object {key}: {got.status_code} {len(got.content)} bytes {got.content[:80]!r}"
                    )
        return lost

    def _lost_rows(self) -> list[str]:
        found: set[str] = set()
        last = "00000000-0000-0000-0000-000000000000"
        while True:
            path = f"{ROWS}?select=id&order=id&limit=1000&id=gt.{last}"
            page = settled(requests.get, self.base_url + path, headers=self.headers)
            page.raise_for_status()
            ids = [row["id"] for row in page.json()]
            found.update(ids)
            if len(ids) < 1000:
                return [f"row {one}" for one in sorted(self.rows - found)]
            last = ids[-1]

    def _lost_accounts(self) -> list[str]:
        with requests.Session() as session:
            return [
                f"account {email}: {answer.status_code}"
                for email in self.accounts
                if (
                    answer := settled(
                        session.post,
                        f"{self.base_url}/auth/login",
                        json={"email": email, "password": PASSWORD},
                    )
                ).status_code
                != 200
            ]

    def report(self, fault: str, since: float, lost: list[str]) -> str:
        lines = [f"{fault}:"]
        for part, tally in self.tallies.items():
            lines.append(
                f"  {part:8} sent {tally.sent:5}  acknowledged {tally.acknowledged:5}  refused {tally.refused:4}"
                f"  broken {tally.broken:3}  longest answer {tally.longest:5.2f} s"
                f"  longest time without one {tally.outage(since):5.2f} s"
            )
        lines.append(f"  lost {len(lost)}, wrong answers {len(self.wrong())}")
        return "\n".join(lines)


class Client:
    """A client of one part, in a thread of its own. Its subclasses say what it does again and again."""

    def __init__(self, load: Load, part: str, number: int) -> None:
        self.load = load
        self._part = part
        self.random = Random(f"{part}-{number}")
        # Several loads may run on one database after each other.
        self.name = f"{part}-{number}-{uuid4().hex[:12]}"
        self.number = 0
        self._session = requests.Session()

    def run(self) -> None:
        with self._session:
            while not self.load.ended:
                self.number += 1
                self.once()
                self.load.pause(self.load.pace)

    def once(self) -> None:
        """Send a request, or some that belong together."""
        raise NotImplementedError

    def lost(self) -> list[str]:
        """As ``Load.lost``, of what this client alone knows."""
        return []

    def send(
        self,
        method: str,
        path: str,
        remember: Callable[[], None] = lambda: None,
        expected: Collection[int] = (),
        **more: Any,
    ) -> requests.Response | None:
        """The response, if the request was acknowledged, which the statuses ``expected`` count as too."""
        begun = monotonic()
        answer = None
        try:
            answer = self._session.request(
                method,
                self.load.base_url + path,
                timeout=HANGING_SECONDS,
                **{"headers": self.load.headers, **more},
            )
            outcome = "acknowledged" if answer.status_code in expected else judged(answer)
            if outcome == "refused":
                self.load.tallies[self._part].refusals.append(f"{method} {path}: {answer.text[:200]}")
        except requests.Timeout:
            outcome = f"{method} {path} hung"
        except requests.RequestException:
            outcome = "broken"
        self.load.record(self._part, begun, outcome, remember)
        if outcome == "acknowledged":
            return answer
        self.load.pause(AFTER_FAILURE_SECONDS)
        return None

    def blame(self, text: str) -> None:
        """Count a response as wrong that ``send`` has returned."""
        self.load.tallies[self._part].wrong.append(text)


class _Objects(Client):
    def once(self) -> None:
        key = f"{self.name}/{self.number}"
        payload = self.random.randbytes(self.random.choice((0, 10, 1000, 70_000, 300_000)))
        digest = sha256(payload).hexdigest()
        path = f"/storage/buckets/private/objects/{key}"
        self.send("PUT", path, lambda: self.load.stored(key, digest), data=payload)


class _Rows(Client):
    def once(self) -> None:
        row = {"id": str(uuid4()), "n": self.number}
        self.send("POST", ROWS, lambda: self.load.rows.add(str(row["id"])), json=row)


class _Accounts(Client):
    def once(self) -> None:
        email = f"{self.name}-{self.number}@example.test"
        account = {"email": email, "password": PASSWORD}
        self.send("POST", "/auth/signup", lambda: self.load.accounts.append(email), json=account)


def settled(ask: Callable[..., requests.Response], url: str, **more: Any) -> requests.Response:
    """The response, asked for again as long as it is a proper refusal, of which a busy machine has some: that does
    not say whether something has been lost."""
    deadline = monotonic() + VERIFYING_SECONDS
    while True:
        answer = ask(url, timeout=VERIFYING_SECONDS, **more)
        if judged(answer) != "refused" or monotonic() > deadline:
            return answer
        sleep(AFTER_FAILURE_SECONDS)


def judged(answer: requests.Response) -> str:
    """How a request ended: acknowledged, properly refused, or what is wrong with the response."""
    if answer.status_code in {200, 201}:
        return "acknowledged"
    if answer.status_code in {503, 504} and answer.headers.get("Retry-After", "").isdigit():
        return "refused"
    return f"{answer.request.method} {answer.request.path_url} -> {answer.status_code} {answer.text[:200]}"
