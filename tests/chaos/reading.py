"""Clients that read, list, link, sign in and delete beside a mixed load that only writes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from hashlib import sha256
from random import Random

import requests

from tests.live.mixed_load import HANGING_SECONDS, PASSWORD, ROWS, Load, Threads, judged

BUCKET = "/storage/buckets/private"
TABLE_QUERIES = (
    "?select=id,n&order=n.desc&limit=20",
    "?n=gte.5&n=lt.10&limit=50",
    "?select=count()",
    "?id=eq.00000000-0000-0000-0000-000000000000",
    "?or=(n.eq.1,n.eq.2)&limit=3",
)


class Refused(Exception):
    """A 503 or 504 that says when to come back."""


def honest(answer: requests.Response) -> requests.Response:
    if judged(answer) == "refused":
        raise Refused
    return answer


class Reading(Threads):
    """``counted`` has what went well, by kind; ``refused`` 503s that say when to come back, ``broken`` connections
    that ended early, ``wrong`` everything else.
    """

    def __init__(self, load: Load, pace: float) -> None:
        self._load = load
        self._pace = pace
        self.counted: Counter[str] = Counter()
        self.refused = 0
        self.broken = 0
        self.wrong: list[str] = []
        works: Sequence[Callable[[requests.Session, Random], str]] = (
            self._download,
            self._listing,
            self._link,
            self._rows,
            self._session,
        )
        super().__init__(partial(self._run, work, Random(n)) for n, work in enumerate(works, 1))

    def _run(self, work: Callable[[requests.Session, Random], str], random: Random) -> None:
        with requests.Session() as session:
            session.headers.update(self._load.headers)
            while not self.ended:
                self._count(work.__name__.strip("_"), partial(work, session, random))
                self.pause(self._pace)

    def _count(self, name: str, work: Callable[[], str]) -> None:
        try:
            fault = work()
        except Refused:
            self.refused += 1
        except requests.Timeout:
            self.wrong.append(f"{name}: hung")
        except requests.RequestException:
            self.broken += 1
        else:
            self.counted[name] += not fault
            if fault:
                self.wrong.append(f"{name}: {fault}")

    def _object(self, random: Random) -> tuple[str, str] | None:
        """A recent one: looking for one among all would take longer and longer."""
        known = list(self._load.recent_objects)
        return random.choice(known) if known else None

    def _get(self, session: requests.Session, path: str, *expected: int) -> requests.Response | str:
        answer = honest(session.get(self._load.base_url + path, timeout=HANGING_SECONDS))
        return answer if answer.status_code in expected else f"{path} -> {answer.status_code}"

    def _download(self, session: requests.Session, random: Random) -> str:
        chosen = self._object(random)
        if chosen is None:
            return ""
        got = self._get(session, f"{BUCKET}/objects/{chosen[0]}", 200)
        if isinstance(got, str):
            return got
        return "" if sha256(got.content).hexdigest() == chosen[1] else f"{chosen[0]} has other bytes"

    def _listing(self, session: requests.Session, random: Random) -> str:
        got = self._get(session, f"{BUCKET}/objects?max_keys={random.randint(1, 200)}&recursive=true", 200)
        return got if isinstance(got, str) else ""

    def _link(self, session: requests.Session, random: Random) -> str:
        chosen = self._object(random)
        if chosen is None:
            return ""
        url = f"{self._load.base_url}{BUCKET}/presign"
        made = honest(session.post(url, json={"key": chosen[0]}, timeout=HANGING_SECONDS))
        if made.status_code != 200:
            return f"presign -> {made.status_code}"
        got = honest(session.get(made.json()["url"], timeout=HANGING_SECONDS))
        return "" if sha256(got.content).hexdigest() == chosen[1] else f"link -> {got.status_code}"

    def _rows(self, session: requests.Session, random: Random) -> str:
        got = self._get(session, ROWS + random.choice(TABLE_QUERIES), 200, 206)
        return got if isinstance(got, str) else ""

    def _session(self, session: requests.Session, random: Random) -> str:
        """Sign in, refresh, sign out: what is revoked has to be forgotten again."""
        known = self._load.accounts[-50:]
        if not known:
            return ""
        base = f"{self._load.base_url}/auth"
        account = {"email": random.choice(known), "password": PASSWORD}
        signed_in = session.post(f"{base}/login", json=account, timeout=HANGING_SECONDS)
        if signed_in.status_code != 200:
            return f"login -> {signed_in.status_code}"
        refresh = {"refresh_token": signed_in.json()["data"]["refresh_token"]}
        refreshed = session.post(f"{base}/refresh", json=refresh, timeout=HANGING_SECONDS)
        if refreshed.status_code != 200:
            return f"refresh -> {refreshed.status_code}"
        bearer = {"Authorization": f"Bearer {refreshed.json()['data']['access_token']}"}
        out = session.post(f"{base}/logout", headers=bearer, timeout=HANGING_SECONDS)
        return "" if out.status_code == 200 else f"logout -> {out.status_code}"
