"""Workers, PostgreSQL and its connections die while clients sign in by e-mail and change their addresses, at two
hosts on one database.

A challenge is answered, often at both hosts at once, until somebody says that it was used up: exactly one session has
begun by it then, or none by the first half of a change of address. What was mailed can be answered when all is over,
whoever was told that a session has begun still has it, and nobody has an address that is somebody else's.
"""

from __future__ import annotations

import hashlib
import os
import re
import signal
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from itertools import count
from pathlib import Path
from random import Random
from time import monotonic, sleep
from typing import Any, Literal
from urllib.parse import parse_qsl, urlsplit

import requests
from attrs import define, field, frozen

from project_service import base64url
from tests.chaos.leftovers import embedded
from tests.live.daemon import TIMEOUT_SECONDS, Daemon, answers, eventually, pid_of, workers_of
from tests.live.loaded_service import credentials, sections, started
from tests.live.mixed_load import AFTER_FAILURE_SECONDS, HANGING_SECONDS, Threads, judged
from tests.live.sql import run_sql

APPLICATION = "http://localhost:3000"
SETTINGS = {
    "EMAIL_SECONDS": "0",
    "EMAILS_MAX_PER_ACCOUNT": "0",
    "EMAILS_MAX_PER_ADDRESS": "0",
    "VERIFICATIONS_MAX_PER_ADDRESS": "0",
    "REDIRECT_URLS": f'["{APPLICATION}/*"]',
}
WAYS = ("code", "token", "link", "pkce")
VICTIMS = ("worker", "worker", "connections", "connections", "postgres")
CLIENTS = 8
# An e-mail that is not written yet is lost with its worker. Then its user asks for another.
MAIL_SECONDS = 3.0
USED_UP = {"otp_expired", "flow_state_not_found"}
TAKEN = {"email_exists", "user_already_exists"}
# "unknown": whether the challenge was used up. "used" is what ``_Client.use_up`` finds out about that later.
Told = Literal["begun", "half", "refused", "taken", "unknown", "used"]


@frozen
class Answered:
    """``given`` has the tokens of a session, or the authorization code for one."""

    told: Told
    given: dict[str, str] = field(factory=dict)


@frozen
class Mail:
    code: str
    link: str

    @property
    def fields(self) -> dict[str, str]:
        return dict(parse_qsl(urlsplit(self.link).query))


class Mails:
    """The e-mails in a folder, by whom they are to and where their links lead. They are removed as they are read."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._mails: dict[tuple[str, str], Mail] = {}

    def wait_for(self, email: str, target: str) -> Mail | None:
        deadline = monotonic() + MAIL_SECONDS
        while (mail := self._found(email, target)) is None and monotonic() < deadline:
            sleep(0.005)
        return mail

    def _found(self, email: str, target: str) -> Mail | None:
        with self._lock:
            for file in self._folder.glob("*.eml"):
                text = file.read_text()
                file.unlink()
                patterns = ("^To: (.*)$", "^([0-9]{6})$", "^(http:.*)$")
                to, code, link = (re.search(pattern, text, re.M) for pattern in patterns)
                assert to and code and link, f"{file} has no code or no link"
                mail = Mail(code[1], link[1].strip())
                self._mails[to[1].strip(), mail.fields["redirect_to"]] = mail
            return self._mails.get((email, target))


@define(eq=False)
class Person:
    """``begun``: how many sessions have begun, whether or not somebody was told so. ``refresh_tokens`` are of those
    that somebody was told of."""

    email: str
    begun: int = 0
    access_token: str = ""
    refresh_tokens: list[str] = field(factory=list)

    def has(self, answered: Answered) -> None:
        self.begun += answered.told in ("begun", "used")
        if answered.given:
            self.access_token = answered.given["access_token"]
            self.refresh_tokens.append(answered.given["refresh_token"])


class Answering(Threads):
    """Clients that ask for challenges at ``urls``, and answer them, until they are stopped."""

    def __init__(self, urls: list[str], anon_key: str, mails: Path, random: Random) -> None:
        self.urls = urls
        self.headers = {"apikey": anon_key}
        self.mails = Mails(mails)
        self.numbers, self.changes = count(), count()
        self.people: list[Person] = []
        # What nobody has answered yet.
        self.waiting: list[tuple[Person, Mail]] = []
        self.counted: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.clients = [_Client(self, Random(random.random())) for _ in range(CLIENTS)]
        super().__init__(one.run for one in self.clients)

    def __str__(self) -> str:
        return ", ".join(f"{what}: {number}" for what, number in sorted(self.counted.items()))


@frozen(eq=False)
class _Client:
    load: Answering
    random: Random

    def run(self) -> None:
        person = self._somebody()
        while not self.load.ended:
            try:
                person = self._somebody() if self.random.random() < 0.3 else person
                self._sign_in(person)
                if person.access_token and self.random.random() < 0.5:
                    self._change_address(person)
                if self.random.random() < 0.2:
                    later = self._somebody()
                    self.load.waiting.append((later, self._mailed(later, {})))
            except AssertionError as fault:
                self.load.wrong.append(str(fault))

    def _somebody(self) -> Person:
        person = Person(f"somebody{next(self.load.numbers)}@example.test")
        self.load.people.append(person)
        return person

    def _target(self) -> str:
        return f"{APPLICATION}/{next(self.load.numbers)}"

    def _sign_in(self, person: Person) -> None:
        way = self.random.choice(WAYS)
        verifier = base64url.encode(self.random.randbytes(32))
        challenge = base64url.encode(hashlib.sha256(verifier.encode()).digest())
        pkce = {"code_challenge": challenge, "code_challenge_method": "s256"}
        mail = self._mailed(person, pkce if way == "pkce" else {})
        answered = self.use_up(way, self.answer(way, mail, person.email))
        if way != "pkce":
            person.has(answered)
        elif answered.told == "begun":
            code = {"auth_code": answered.given["code"], "code_verifier": verifier}
            person.has(self.use_up("exchange", partial(self._post, "/token?grant_type=pkce", code)))

    def _mailed(self, person: Person, pkce: dict[str, str]) -> Mail:
        """A challenge that its user has got."""
        while True:
            target = self._target()
            body = {"email": person.email, **pkce}
            asked = self._request(
                "POST", self._any(), f"/otp?redirect_to={target}", json=body, headers=self.load.headers
            )
            if asked is not None:
                assert asked.status_code == 200, asked.text
                mail = self.load.mails.wait_for(person.email, target)
                if mail is not None:
                    return mail

    def _change_address(self, person: Person) -> None:
        # Two people want each address.
        new = f"wanted{next(self.load.changes) // 2}@example.test"
        headers = {**self.load.headers, "Authorization": f"Bearer {person.access_token}"}
        asked = None
        while asked is None:
            target = self._target()
            path = f"/user?redirect_to={target}"
            asked = self._request("PUT", self._any(), path, json={"email": new}, headers=headers)
        if _error_code(asked) in TAKEN:
            self.load.counted["taken already"] += 1
            return
        assert asked.status_code == 200, asked.text
        mails = [(email, self.load.mails.wait_for(email, target)) for email in (person.email, new)]
        answered = None
        for email, mail in self.random.sample(mails, 2):
            if mail is None:
                return
            # Codes are looked for by the address, which is somebody else's too.
            way = self.random.choice(WAYS[1:3] if email == new else WAYS[:3])
            first, answered = answered, self.use_up("change", self.answer(way, mail, email, "email_change"))
            assert first is not None or answered.told in ("half", "used"), answered
        assert answered is not None and answered.told in ("begun", "used", "taken"), answered
        if answered.told != "taken":
            person.email = new
        person.has(answered)

    def use_up(self, what: str, answer: Callable[[str], Answered]) -> Answered:
        """Answer at one host or at both at once, until somebody says that it was used up."""
        unknown = False
        while True:
            urls = self.load.urls if self.random.random() < 0.5 else [self._any()]
            with ThreadPoolExecutor(len(urls)) as threads:
                told = list(threads.map(answer, urls))
            done = [one for one in told if one.told in ("begun", "half")]
            assert len(done) <= 1, f"{what} was used twice"
            done += [one for one in told if one.told == "taken"]
            unknown = unknown or any(one.told == "unknown" for one in told)
            if not done and any(one.told == "refused" for one in told):
                assert unknown, f"{what} is lost"
                done = [Answered("used")]
            if done:
                self.load.counted[f"{what} {done[0].told}"] += 1
                return done[0]

    def answer(self, way: str, mail: Mail, email: str, kind: str = "email") -> Callable[[str], Answered]:
        if way == "code":
            return partial(self._post, "/verify", {"type": kind, "email": email, "token": mail.code})
        if way == "token":
            return partial(self._post, "/verify", {"type": kind, "token_hash": mail.fields["token"]})
        return partial(self._follow, mail)

    def _post(self, path: str, body: dict[str, str], url: str) -> Answered:
        answer = self._request("POST", url, path, json=body, headers=self.load.headers)
        if answer is None:
            return Answered("unknown")
        if answer.status_code == 200:
            given = answer.json()
            return Answered("begun", given) if "access_token" in given else Answered("half")
        return _refusal(_error_code(answer), answer.text)

    def _follow(self, mail: Mail, url: str) -> Answered:
        """As a browser that opens the link and presses the button."""
        page = self._request("GET", url, f"/verify?{urlsplit(mail.link).query}", allow_redirects=False)
        form = {name: mail.fields[name] for name in ("type", "token")}
        if page is not None and page.status_code == 200:
            assert all(f'value="{value}"' in page.text for value in form.values()), page.text
        answer = self._request("POST", url, "/verify", data=form, allow_redirects=False)
        if answer is None:
            return Answered("unknown")
        assert answer.status_code in (303, 403, 422), f"{answer.status_code} {answer.text}"
        if answer.status_code != 303:
            return Answered("refused" if answer.status_code == 403 else "taken")
        landed = urlsplit(answer.headers["Location"])
        given = dict(parse_qsl(landed.fragment or landed.query))
        if "error" in given:
            return _refusal(given["error_code"], str(given))
        return Answered("half") if "message" in given else Answered("begun", given)

    def _any(self) -> str:
        return self.random.choice(self.load.urls)

    def _request(self, method: str, url: str, path: str, **more: Any) -> requests.Response | None:
        """None if nobody knows what came of it."""
        try:
            answer = requests.request(method, f"{url}/auth/v1{path}", timeout=HANGING_SECONDS, **more)
        except requests.Timeout:
            raise AssertionError(f"{method} {path} hung") from None
        except requests.RequestException:
            answer = None
        if answer is None or judged(answer) == "refused":
            self.load.counted["unknown"] += 1
            sleep(AFTER_FAILURE_SECONDS)
            return None
        return answer


def _error_code(answer: requests.Response) -> str:
    return "" if answer.ok else str(answer.json()["error_code"])


def _refusal(code: str, text: str) -> Answered:
    if code in TAKEN:
        return Answered("taken")
    assert code in USED_UP, text
    return Answered("refused")


def kill_during_challenges(directory: Path, random: Random, kills: int) -> None:
    """Raises ``AssertionError`` where a challenge was used twice or is lost, or an address has two users."""
    os.environ.update({f"PROJECT_SERVICE__AUTH__{name}": value for name, value in SETTINGS.items()})
    first, second = directory / "one", directory / "two"
    first.mkdir()
    (second / "var").mkdir(parents=True, mode=0o700)
    smtp = f'[smtp]\nmail_dir = "{directory / "mails"}"\n'
    begun = monotonic()
    with ExitStack() as services:
        hosts = [services.enter_context(started(first, more=smtp))]
        for name in ("jwt-keys.json", "credentials.json"):
            (second / "var" / name).write_bytes((first / "var" / name).read_bytes())
        dsn, store = embedded(first / "var")
        there = sections(dsn, store)
        hosts.append(services.enter_context(started(second, there["database"], there["more"] + smtp)))
        known = [credentials(folder) for folder in (first, second)]
        urls = [each["base_url"] for each in known]
        with Answering(urls, known[0]["anon_key"], directory / "mails", random) as load:
            for number in range(1, kills + 1):
                load.pause(random.uniform(0.2, 1))
                victim = _killed(random, hosts, dsn)
                _go_on(load)
                print(f"kill {number:2}: {victim}; {load}", flush=True)
        _judge(load, dsn)
    print(f"  {monotonic() - begun:.0f} s")


def _killed(random: Random, hosts: list[Daemon], dsn: str) -> str:
    victim = random.choice(VICTIMS)
    if victim == "worker":
        host = random.choice(hosts)
        before = workers_of(host)
        os.kill(random.choice(sorted(before)), signal.SIGKILL)
        eventually(lambda: len(workers_of(host) - before) == 1, "a new worker")
    elif victim == "postgres":
        var = hosts[0].data_dir
        old = pid_of(var, "postgres")
        os.kill(old, signal.SIGKILL)
        eventually(lambda: pid_of(var, "postgres") not in {0, old}, "a new postgres")
    else:
        run_sql(
            dsn,
            "select pg_terminate_backend(pid) from pg_stat_activity"
            " where usename = current_user and pid <> pg_backend_pid() and random() < 0.5",
        )
    return victim


def _go_on(load: Answering) -> None:
    eventually(lambda: all(answers(f"{url}/ready") for url in load.urls), "readiness")
    before = load.counted.total() - load.counted["unknown"]
    eventually(lambda: load.counted.total() - load.counted["unknown"] >= before + 10, "answers")


def _judge(load: Answering, dsn: str) -> None:
    client = load.clients[0]
    for person, mail in load.waiting:
        told = client.use_up("later", client.answer(client.random.choice(WAYS[:3]), mail, person.email))
        assert told.told == "begun", f"what was mailed to {person.email} is {told.told}"
        person.has(told)
    assert load.wrong == [], "\n".join(load.wrong)
    begun = "select u.email, count(s.id) from auth.users u left join auth.sessions s on s.user_id = u.id group by 1"
    expected = {person.email: person.begun for person in load.people}
    found = dict(run_sql(dsn, begun))
    differ = [(email, found.get(email, 0), n) for email, n in expected.items() if found.get(email, 0) != n]
    assert not differ, f"of these people other numbers of sessions have begun: {differ}"
    assert found.keys() <= expected.keys(), found.keys() - expected.keys()
    assert len(expected) == len(load.people), "two people have one address"
    others = "select count(*) from auth.identities i join auth.users u on u.id = i.user_id where i.email <> u.email"
    assert run_sql(dsn, others) == [(0,)], "an identity has another address than its user"
    for person in load.people:
        for token in person.refresh_tokens:
            sent = {"refresh_token": token}
            url = f"{load.urls[0]}/auth/v1/token?grant_type=refresh_token"
            answer = requests.post(url, json=sent, headers=load.headers, timeout=TIMEOUT_SECONDS)
            assert answer.status_code == 200, f"a session of {person.email} is lost: {answer.text}"
    print(f"  {load}; {len(load.waiting)} answered at last")
    for happened in (*(f"{way} begun" for way in (*WAYS, "exchange", "change")), "change half", "unknown"):
        assert load.counted[happened], f"there was no {happened}"
