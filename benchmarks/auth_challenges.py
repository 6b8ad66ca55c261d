"""Sign-in by e-mail, refreshing and the signed-in user, while nobody or many others have been mailed a challenge:
``python -m benchmarks.auth_challenges [--rounds 5] [--seconds 3]``.

What a request costs is CPU of the service and of PostgreSQL's backends together.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator
from itertools import count
from statistics import median

from benchmarks.auth import PASSWORD, SETTINGS, Client, rate
from benchmarks.load import CLIENTS, Request, wrk
from benchmarks.report import HEADING, Row, interleaved, show
from benchmarks.running import Running, service
from tests.chaos.challenges import APPLICATION, Mails
from tests.chaos.challenges import SETTINGS as UNLIMITED

OTHERS = 10_000
_USERS = f"""
insert into auth.users (email, email_key)
    select 'other' || i || '@example.test', 'other' || i || '@example.test' from generate_series(1, {OTHERS}) i
    on conflict do nothing
"""
_CHALLENGES = """
insert into auth.challenges (token_hash, user_id, purpose, created_at, expires_at, email_key, code_hash, data)
    select sha256(id::text::bytea), id, 'magic_link', now(), now() + interval '1 hour', email_key,
        sha256(email_key::bytea), '{"redirect_to": "http://localhost:3000/"}'
    from auth.users where email_key like 'other%'
"""


def settings() -> dict[str, str]:
    """What ``measure`` needs besides ``auth.SETTINGS``: no limits for one address."""
    return {f"PROJECT_SERVICE__AUTH__{name}": value for name, value in UNLIMITED.items()}


def measure(running: Running, rounds: int, seconds: float) -> Iterator[Row]:
    running.sql(_USERS)
    clients = [Client(running.url) for _ in range(CLIENTS)]
    emails = [f"mailed{number}@example.test" for number in range(CLIENTS)]
    sessions = [
        client.post("/auth/signup", {"email": email, "password": PASSWORD})
        for client, email in zip(clients, emails, strict=True)
    ]
    tokens = [session["refresh_token"] for session in sessions]
    mails, numbers = Mails(running.data_dir / "mail"), count()
    key = {"apikey": running.anon_key}

    def refresh(number: int) -> None:
        sent = {"refresh_token": tokens[number]}
        answer = clients[number].post("/auth/v1/token?grant_type=refresh_token", sent, **key)
        tokens[number] = answer["refresh_token"]

    def sign_in(number: int) -> None:
        email, target = f"code{number}@example.test", f"{APPLICATION}/{next(numbers)}"
        clients[number].post(f"/auth/v1/otp?redirect_to={target}", {"email": email}, **key)
        mail = mails.wait_for(email, target)
        if mail is None:
            raise SystemExit("an e-mail was not written")
        sent = {"type": "email", "email": email, "token": mail.code}
        clients[number].post("/auth/v1/verify", sent, **key)

    bearer = {**key, "Authorization": f"Bearer {sessions[0]['access_token']}"}
    user = Request(f"{running.url}/auth/v1/user", bearer)
    works: tuple[tuple[str, Callable[[], float]], ...] = (
        ("/auth/v1/token by refresh", lambda: rate(CLIENTS, seconds, refresh)),
        ("/auth/v1/user", lambda: wrk(user, seconds).rate),
        ("/auth/v1/otp, its mail and /verify", lambda: rate(CLIENTS, seconds, sign_in)),
    )
    for name, work in works:
        yield _compared(running, name, work, rounds, seconds)


def _compared(running: Running, name: str, work: Callable[[], float], rounds: int, seconds: float) -> Row:
    costs: dict[bool, list[float]] = {False: [], True: []}

    def measured(filled: bool) -> float:
        # Both ways, so that PostgreSQL has as much to write beside either.
        running.sql(f"truncate auth.challenges; {_CHALLENGES}")
        if not filled:
            running.sql("truncate auth.challenges")
        running.sql("vacuum analyze auth.challenges")
        before = _cpu_seconds(running)
        found = work()
        costs[filled].append((_cpu_seconds(running) - before) / (found * seconds) * 1000)
        return found

    empty, full = interleaved(rounds, lambda: measured(False), lambda: measured(True))
    told = [
        f"{each:.0f}/s, {median(costs[filled]):.2f} ms" for each, filled in ((full, True), (empty, False))
    ]
    return Row(f"{name}, {OTHERS:,} challenges", told[0], f"none {told[1]}", full / empty, 0.95)


def _cpu_seconds(running: Running) -> float:
    return running.cpu_seconds() + running.database_cpu_seconds()


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.partition(":")[0] if __doc__ else None)
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--seconds", type=float, default=3.0)
    given = options.parse_args()
    print(f"{HEADING}   load {os.getloadavg()[0]:.1f}")
    with service(2, {**SETTINGS, **settings()}) as running:
        show(measure(running, given.rounds, given.seconds))
    print(f"load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
