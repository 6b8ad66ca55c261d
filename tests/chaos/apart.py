"""Callers stay apart whatever the project's SQL does and whatever is killed: ``apart``.

First some reads have operands that take long, and some wait for a lock, in a database in which reads share
connections: only who asks for slow things may wait for them. Then functions that are wrongly declared immutable,
leave settings on their session, take locks of it and make temporary tables stand in policies on rows and objects, in
triggers on accounts, and in views: each user must see what is theirs alone.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from threading import Event, Lock, Thread
from time import monotonic, sleep
from typing import Any

import psycopg2
import requests
from attrs import define, field

from tests.live.daemon import Daemon, answers, eventually, pid_of, workers_of
from tests.live.loaded_service import credentials, started
from tests.live.sql import run_sql

USERS = 6
PASSWORD = "a long enough one"
REST = "/dev/db/main/rest"
# The worst that a quick read may take while nothing is being killed. Slow neighbours take three seconds.
LONGEST_SECONDS = 1.0
NEIGHBOURS = """
create view naps as
  select id, pg_sleep(case when id > 0 then 30 else 0 end)::text as nap from generate_series(0, 3) id;
create table locked (id int primary key);
grant select on naps, locked to anon, authenticated;
create table plain (id int primary key, word text);
insert into plain values (1, 'quick');
grant select on plain to anon;
notify pgrst, 'reload schema'
"""
FUNCTIONS = """
create function me() returns uuid language sql immutable as $$ select auth.uid() $$;
create function remembered() returns uuid language plpgsql as $$ begin
  if coalesce(current_setting('app.me', true), '') = '' then
    perform set_config('app.me' /* , true) */, auth.uid()::text, false); end if;
  perform set_config('search_path', 'nowhere', false);
  perform pg_try_advisory_lock(hashtext(auth.uid()::text));
  return current_setting('app.me')::uuid; end $$;
create table people (id uuid primary key, name text);
alter table people enable row level security;
create policy own on people using (id = auth.uid());
grant select on people to authenticated;
create function my_name() returns text language sql immutable as 'select name from public.people';
create table diary (id int generated always as identity primary key, owner uuid default auth.uid(), word text);
alter table diary enable row level security;
create policy own on diary to authenticated using (owner = me() and owner = remembered()) with check (owner = me());
grant select, insert on diary to authenticated;
create view named with (security_invoker) as select my_name() as name, me() as id, remembered() as kept;
grant select on named to authenticated;
create policy own on storage.objects to authenticated
  using (owner = public.me() and owner = public.remembered()) with check (owner = public.me());
create function leaves() returns trigger language plpgsql security definer as $$ begin
  perform set_config('app.me', new.id::text, false);
  perform set_config('search_path', 'nowhere', false);
  set session lock_timeout = '9min';
  create temporary table if not exists mine (id uuid);
  return new; end $$;
create trigger leaves after insert or update on auth.users for each row execute function leaves();
notify pgrst, 'reload schema'
"""
# Quick or endless, as its operand says.
HOSTILE = f"{REST}/naps?id=eq."


@define
class User:
    """A signed-in user. ``ask`` returns the status and the body; 0 if there was none."""

    base_url: str
    key: str
    email: str
    id: str = ""
    token: str = ""
    session: requests.Session = field(factory=requests.Session)

    def ask(self, method: str, path: str, timeout: float = 20.0, **more: Any) -> tuple[int, Any]:
        headers = {
            "X-Service-Key": self.key,
            **({"Authorization": f"Bearer {self.token}"} if self.token else {}),
        }
        try:
            answer = self.session.request(
                method, self.base_url + path, headers=headers, timeout=timeout, **more
            )
        except requests.RequestException:
            return 0, None
        kind = answer.headers.get("Content-Type", "")
        return answer.status_code, answer.json() if kind.startswith("application/json") else answer.content

    def sign(self, what: str) -> int:
        status, body = self.ask("POST", f"/auth/{what}", json={"email": self.email, "password": PASSWORD})
        if status in (200, 201):
            self.id, self.token = body["data"]["user"]["id"], body["data"]["access_token"]
        return status


@define
class Observed:
    """What clients have seen. ``wrong`` are answers that showed something of another. ``calm`` is set while nothing
    is being killed or recovering, and ``longest`` is how long a request took then, by kind."""

    stop: Event = field(factory=Event)
    calm: Event = field(factory=Event)
    counts: Counter[str] = field(factory=Counter)
    longest: dict[str, float] = field(factory=dict)
    wrong: list[str] = field(factory=list)
    _lock: Any = field(factory=Lock)

    def note(self, kind: str, status: int, took: float, right: bool) -> None:
        with self._lock:
            self.counts[f"{kind} {status}"] += 1
            if not right:
                self.wrong.append(f"{kind} {status}")
            elif self.calm.is_set() and status < 300:
                self.longest[kind] = max(self.longest.get(kind, 0.0), took)


def _checks(user: User) -> dict[str, tuple[str, str, Callable[[Any], bool]]]:
    """By kind: what is asked, and whether a successful answer is right."""
    return {
        "rows": (
            "GET",
            f"{REST}/diary?select=owner,word",
            lambda rows: rows == [{"owner": user.id, "word": user.email}],
        ),
        "view": (
            "GET",
            f"{REST}/named",
            lambda rows: rows == [{"name": user.email, "id": user.id, "kept": user.id}],
        ),
        "object": ("GET", "/storage/buckets/judged/objects/a", lambda body: body == user.email.encode()),
        "listing": (
            "GET",
            "/storage/buckets/judged/objects?recursive=true",
            lambda body: [one["key"] for one in body["objects"]] == [f"{user.email}/a"],
        ),
        "user": ("GET", "/auth/user", lambda body: body["data"]["user"]["id"] == user.id),
        "sign-in": ("POST", "/auth/login", lambda body: body["data"]["user"]["id"] == user.id),
    }


def _play(user: User, observed: Observed, random: Random) -> None:
    checks = _checks(user)
    while not observed.stop.is_set():
        kind = random.choice(list(checks))
        method, path, right = checks[kind]
        if kind == "object":
            path = path.replace("/a", f"/{user.email}/a")
        sent = {"email": user.email, "password": PASSWORD} if kind == "sign-in" else None
        begun, calm = monotonic(), observed.calm.is_set()
        status, body = user.ask(method, path, json=sent)
        took = monotonic() - begun
        if status == 200:
            observed.note(kind, status, took if calm else 0.0, right(body))
        else:
            # Refused while something recovers; anything else of a caller's own is wrong.
            observed.note(kind, status, 0.0, status in (0, 503, 504))
            sleep(0.05)


def _disturb(base_url: str, key: str, observed: Observed, random: Random) -> None:
    """Slow requests, with the anon key alone."""
    client = User(base_url, key, "")
    while not observed.stop.is_set():
        path = random.choice((*[f"{HOSTILE}0"] * 20, f"{HOSTILE}2", f"{REST}/locked"))
        status, _ = client.ask("GET", path, timeout=3.0)
        observed.note("slow", status, 0.0, True)


def _quick(base_url: str, key: str, observed: Observed) -> None:
    """What waits behind nobody."""
    client = User(base_url, key, "")
    while not observed.stop.is_set():
        begun, calm = monotonic(), observed.calm.is_set()
        status, body = client.ask("GET", f"{REST}/plain?id=eq.1")
        right = body == [{"id": 1, "word": "quick"}] if status == 200 else status in (0, 503, 504)
        observed.note("neighbour", status, monotonic() - begun if calm else 0.0, right)
        sleep(0.002)


def callers_apart(directory: Path, random: Random, rounds: int) -> None:
    """Raises ``AssertionError`` where a user saw something of another, or somebody waited for a slow neighbour."""
    with started(directory, database="statement_timeout_seconds = 3") as daemon:
        known = credentials(directory)
        anonymous = known["base_url"], known["anon_key"]

        def run(observed: Observed, clients: list[Thread]) -> None:
            for client in clients:
                client.start()
            try:
                for number in range((rounds + 1) // 2):
                    _round(number, daemon, directory, known, observed, random)
            finally:
                observed.stop.set()
                for client in clients:
                    client.join()
            print("  " + "  ".join(f"{kind}: {count}" for kind, count in sorted(observed.counts.items())))
            print(
                "  longest: " + "  ".join(f"{kind} {t:.2f} s" for kind, t in sorted(observed.longest.items()))
            )
            assert observed.wrong == [], observed.wrong[:10]

        run_sql(known["dsn"], NEIGHBOURS)
        observed = Observed()
        slow = [Thread(target=_disturb, args=(*anonymous, observed, Random(n))) for n in range(3)]
        run(observed, [*slow, *(Thread(target=_quick, args=(*anonymous, observed)) for _ in range(4))])
        longest = observed.longest["neighbour"]
        assert longest < LONGEST_SECONDS, f"somebody waited {longest:.2f} s for a slow neighbour"
        run_sql(known["dsn"], FUNCTIONS)
        observed = Observed()
        users = _users(known)
        run(observed, [Thread(target=_play, args=(one, observed, Random(one.email))) for one in users])


def _users(known: dict[str, str]) -> list[User]:
    service = User(known["base_url"], known["service_key"], "")
    made = {"name": "judged", "visibility": "private", "policies": True}
    assert service.ask("POST", "/admin/buckets", json=made)[0] == 201
    users = [
        User(known["base_url"], known["anon_key"], f"user{number}@example.test") for number in range(USERS)
    ]
    for user in users:
        assert user.sign("signup") == 201
        run_sql(known["dsn"], "insert into people values (%s, %s)", user.id, user.email)
        upload, row = partial(_put, user), partial(_insert, user)
        eventually(upload, "an upload")
        eventually(row, "a row")
    return users


def _put(user: User) -> bool:
    path = f"/storage/buckets/judged/objects/{user.email}/a"
    return user.ask("PUT", path, data=user.email.encode())[0] in (200, 201)


def _insert(user: User) -> bool:
    return user.ask("POST", f"{REST}/diary", json={"word": user.email})[0] == 201


def _round(
    number: int, daemon: Daemon, directory: Path, known: dict[str, str], observed: Observed, random: Random
) -> None:
    """Some seconds in which nothing is killed but a table is locked for one of them, then a kill and the recovery."""
    connection = psycopg2.connect(known["dsn"])
    connection.cursor().execute("lock table locked")
    observed.calm.set()
    sleep(random.uniform(2.0, 4.0))
    observed.calm.clear()
    connection.close()
    victim = random.choice(("backends", "worker", "postgres"))
    if victim == "backends":
        ends = "select pg_terminate_backend(pid) from pg_stat_activity where pid <> pg_backend_pid()"
        run_sql(known["dsn"], f"{ends} and backend_type = 'client backend'")
    elif victim == "worker":
        before = workers_of(daemon)
        os.kill(random.choice(sorted(before)), signal.SIGKILL)
        eventually(lambda: len(workers_of(daemon) - before) == 1, "a new worker")
    else:
        old = pid_of(directory / "var", victim)
        os.kill(old, signal.SIGKILL)
        eventually(lambda: pid_of(directory / "var", victim) not in {0, old}, "a new server")
    eventually(lambda: answers(f"{known['base_url']}/ready"), "readiness")
    print(
        f"  round {number + 1}: {victim} killed; answers so far {sum(observed.counts.values())}", flush=True
    )
    sleep(2.0)
