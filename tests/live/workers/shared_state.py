"""Random requests, each to a random worker: what one worker has acknowledged must hold for all others at once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import requests

from tests.live.daemon import Daemon, sockets_of, workers_of
from tests.live.loaded_service import credentials
from tests.live.mixed_load import ROWS

STORAGE = "/storage/buckets/private"
KEYS = ("a", "b/c", "b/d", "é ü")
EMAILS = ("ann@example.test", "bob@example.test", "eve@example.test")
# The service must not limit failed logins.
UNLIMITED_LOGINS = ("PROJECT_SERVICE__AUTH__LOGIN_FAILURES_MAX", "0")
PASSWORDS = ("a long enough one", "another long one", "yet another one")


class SharedState:
    """What must exist according to the responses so far, and connections to every worker."""

    def __init__(self, daemon: Daemon, data_dir: Path, random: Random) -> None:
        known = credentials(data_dir)
        self._random = random
        self._url = known["base_url"]
        self._headers = {"X-Service-Key": known["service_key"]}
        self._sessions = self._connected(daemon)
        self.objects: dict[str, bytes] = {}
        self.rows: dict[str, int] = {}
        self.passwords: dict[str, str] = {}

    def _connected(self, daemon: Daemon) -> list[requests.Session]:
        """Opens connections, which are kept open, until each worker has two."""
        before = {pid: sockets_of(pid) for pid in workers_of(daemon)}
        sessions: list[requests.Session] = []
        while any(sockets_of(pid) < count + 2 for pid, count in before.items()):
            assert len(sessions) < 200, "one worker takes all connections"
            sessions.append(requests.Session())
            assert sessions[-1].get(f"{self._url}/live", timeout=30).ok
        return sessions

    def ask(self, method: str, path: str, expected: int, **more: Any) -> requests.Response:
        """On any connection."""
        headers = {**self._headers, **more.pop("headers", {})}
        session = self._random.choice(self._sessions)
        answer = session.request(method, self._url + path, headers=headers, timeout=30, **more)
        assert answer.status_code == expected, (method, path, answer.status_code, answer.text)
        return answer

    def go(self, steps: int) -> None:
        actions: tuple[Callable[[], None], ...] = (
            *(self.put, self.create, self.delete_object, self.move, self.copy, self.link),
            *(self.insert, self.change, self.delete_row, self.sign_up, self.log_in, self.new_password),
            self.new_metadata,
        )
        for _ in range(steps):
            self._random.choice(actions)()
        self.compare()

    def compare(self) -> None:
        for _ in range(4):
            listed = self.ask("GET", f"{STORAGE}/objects?recursive=true", 200).json()
            assert {one["key"]: one["size"] for one in listed["objects"]} == {
                key: len(payload) for key, payload in self.objects.items()
            }
            assert {row["id"]: row["n"] for row in self.ask("GET", ROWS, 200).json()} == self.rows
            bucket = self.ask("GET", "/admin/buckets/private", 200).json()
            assert bucket["object_count"] == len(self.objects)
            assert bucket["total_bytes"] == sum(map(len, self.objects.values()))

    def _is_stored(self, key: str) -> None:
        expected = self.objects.get(key)
        got = self.ask("GET", f"{STORAGE}/objects/{key}", 404 if expected is None else 200)
        assert expected is None or got.content == expected, key

    def put(self) -> None:
        key = self._random.choice(KEYS)
        payload = self._random.randbytes(self._random.choice((0, 7, 3000)))
        self.ask("PUT", f"{STORAGE}/objects/{key}", 200 if key in self.objects else 201, data=payload)
        self.objects[key] = payload
        self._is_stored(key)

    def create(self) -> None:
        key, none = self._random.choice(KEYS), {"If-None-Match": "*"}
        taken = key in self.objects
        self.ask("PUT", f"{STORAGE}/objects/{key}", 412 if taken else 201, data=b"new", headers=none)
        self.objects.setdefault(key, b"new")
        self._is_stored(key)

    def delete_object(self) -> None:
        key = self._random.choice(KEYS)
        self.ask("DELETE", f"{STORAGE}/objects/{key}", 204 if key in self.objects else 404)
        self.objects.pop(key, None)
        self._is_stored(key)

    def copy(self) -> None:
        self._to_another("copy", 201)

    def move(self) -> None:
        moved = self._to_another("move", 200)
        self.objects.pop(moved, None)
        self._is_stored(moved)

    def _to_another(self, how: str, status: int) -> str:
        source, target = self._random.sample(KEYS, 2)
        there = source in self.objects
        self.ask("POST", f"{STORAGE}/{how}", status if there else 404, json={"from": source, "to": target})
        if there:
            self.objects[target] = self.objects[source]
        self._is_stored(target)
        return source

    def link(self) -> None:
        key = self._random.choice(KEYS)
        there = key in self.objects
        made = self.ask("POST", f"{STORAGE}/presign", 200 if there else 404, json={"key": key})
        if there:
            path = made.json()["url"].removeprefix(self._url)
            assert self.ask("GET", path, 200).content == self.objects[key]
            self.ask("GET", path, 410)

    def _id(self) -> str:
        return f"00000000-0000-0000-0000-00000000000{self._random.randrange(6)}"

    def _is_row(self, one: str) -> None:
        expected = [{"id": one, "n": self.rows[one]}] if one in self.rows else []
        assert self.ask("GET", f"{ROWS}?id=eq.{one}", 200).json() == expected

    def insert(self) -> None:
        one, n = self._id(), self._random.randrange(100)
        self.ask("POST", ROWS, 409 if one in self.rows else 201, json={"id": one, "n": n})
        self.rows.setdefault(one, n)
        self._is_row(one)

    def change(self) -> None:
        one, n = self._id(), self._random.randrange(100)
        self.ask("PATCH", f"{ROWS}?id=eq.{one}", 204, json={"n": n})
        if one in self.rows:
            self.rows[one] = n
        self._is_row(one)

    def delete_row(self) -> None:
        one = self._id()
        self.ask("DELETE", f"{ROWS}?id=eq.{one}", 204)
        self.rows.pop(one, None)
        self._is_row(one)

    def sign_up(self) -> None:
        email, password = self._random.choice(EMAILS), self._random.choice(PASSWORDS)
        account = {"email": email, "password": password}
        self.ask("POST", "/auth/signup", 409 if email in self.passwords else 201, json=account)
        self.passwords.setdefault(email, password)

    def log_in(self) -> None:
        email, password = self._random.choice(EMAILS), self._random.choice(PASSWORDS)
        right = self.passwords.get(email)
        answer = self.ask(
            "POST",
            "/auth/login",
            200 if password == right else 401,
            json={"email": email, "password": password},
        )
        if password == right:
            self._lives(email, answer.json()["data"])

    def _lives(self, email: str, session: Any) -> None:
        """A session, and what follows on it, wherever it is asked for."""
        refreshed = self.ask("POST", "/auth/refresh", 200, json={"refresh_token": session["refresh_token"]})
        for one in (session, refreshed.json()["data"]):
            bearer = {"Authorization": f"Bearer {one['access_token']}"}
            assert self.ask("GET", "/auth/user", 200, headers=bearer).json()["data"]["user"]["email"] == email

    def _logged_in(self) -> tuple[str, dict[str, str]]:
        """Somebody's address, and their token in a header."""
        email = self._random.choice(sorted(self.passwords))
        account = {"email": email, "password": self.passwords[email]}
        session = self.ask("POST", "/auth/login", 200, json=account).json()["data"]
        return email, {"Authorization": f"Bearer {session['access_token']}"}

    def new_metadata(self) -> None:
        if not self.passwords:
            return
        _, bearer = self._logged_in()
        for n in range(5):
            wanted = {"metadata": {"n": n}}
            self.ask("PATCH", "/auth/user", 200, headers=bearer, json=wanted)
            for _ in range(3):
                shown = self.ask("GET", "/auth/user", 200, headers=bearer).json()["data"]["user"]
                assert shown["metadata"] == wanted["metadata"]

    def new_password(self) -> None:
        if not self.passwords:
            return
        (email, bearer), new = self._logged_in(), self._random.choice(PASSWORDS)
        change = {"password": new, "current_password": self.passwords[email]}
        self.ask("PATCH", "/auth/user", 200, headers=bearer, json=change)
        self.passwords[email] = new
        self.ask("POST", "/auth/login", 200, json={"email": email, "password": new})
