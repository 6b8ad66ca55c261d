"""Recovery of passwords and confirmation of addresses, over HTTP in memory."""

from __future__ import annotations

import re
from typing import Any

from twisted.internet.defer import Deferred
from twisted.trial.unittest import TestCase

from project_service.auth.mail_templates import NEEDED, TemplateFault
from project_service.settings.model import Smtp
from tests.http.auth.app import PASSWORD, AuthApp
from tests.temporary import temporary_directory

TOKEN = re.compile(r"^[A-Za-z0-9_-]{43}$", re.MULTILINE)


class Mailing(TestCase):
    def make(self, **auth: object) -> AuthApp:
        self.app = AuthApp(self, **auth)  # type: ignore[arg-type]  # settings by name
        return self.app

    def recover(self, email: object = "ada@example.test", **more: str) -> object:
        answer = self.app.call("POST", "/auth/recover", {"email": email}, **more)  # type: ignore[arg-type]  # headers
        return (answer.status, answer.body)

    def token(self) -> str:
        tokens = TOKEN.findall(self.app.mails[-1].text)
        assert len(tokens) == 1
        return str(tokens[0])

    def reset(self, token: object, password: object = "a brand new one") -> tuple[int, object]:
        answer = self.app.call("POST", "/auth/reset", {"token": token, "password": password})
        return answer.status, None if answer.status == 200 else answer.code


class Recovery(Mailing):
    def setUp(self) -> None:
        self.make()
        self.session = self.app.sign_up().data

    def test_a_known_and_an_unknown_address_get_the_same_response(self) -> None:
        assert self.recover() == self.recover("nobody@example.test") == (200, {"data": None, "error": None})
        assert [mail.recipient for mail in self.app.mails] == ["ada@example.test"]
        assert [event.action for event in self.app.repository.events[-2:]] == ["mail_recovery"] * 2

    def test_the_mailed_token_sets_a_password_once_and_ends_every_session(self) -> None:
        self.recover()
        token = self.token()
        assert self.reset(token) == (200, None)
        assert self.app.user(self.session["access_token"]).code == "session_revoked"
        assert self.app.log_in().status == 401
        assert self.app.log_in(password="a brand new one").status == 200
        assert self.reset(token, "yet another one") == (422, "invalid_one_time_token")

    def test_of_two_simultaneous_resets_with_one_token_one_succeeds(self) -> None:
        self.recover()
        token = self.token()
        gate: Deferred[None] = Deferred()
        self.app.hashes.gate = gate
        clients = [self.app.app.connect() for _ in range(2)]
        for number, client in enumerate(clients):
            body = b'{"token":"%b","password":"a brand new one %d"}' % (token.encode(), number)
            kind = b"Content-Type: application/json\r\nContent-Length: %d" % len(body)
            client.send(b"POST /auth/reset HTTP/1.1\r\nHost: x\r\n" + kind + b"\r\n\r\n" + body)
        self.app.hashes.gate = None
        gate.callback(None)
        assert [client.received()[:12] for client in clients] == [b"HTTP/1.1 200", b"HTTP/1.1 422"]
        assert self.app.log_in(password="a brand new one 0").status == 200

    def test_white_space_around_a_token_is_ignored(self) -> None:
        self.recover()
        assert self.reset(f" {self.token()}\r\n") == (200, None)

    def test_a_refused_password_leaves_the_token_valid(self) -> None:
        self.recover()
        assert self.reset(self.token(), "short") == (422, "weak_password")
        assert self.reset(self.token(), "ada@example.test") == (422, "weak_password")
        assert self.reset(self.token()) == (200, None)

    def test_a_token_expires_after_an_hour(self) -> None:
        self.recover()
        self.app.clock.advance(3600)
        assert self.reset(self.token()) == (422, "invalid_one_time_token")

    def test_a_newer_token_replaces_an_older_one_and_one_mail_a_minute_is_sent(self) -> None:
        self.recover()
        first = self.token()
        self.recover()
        assert len(self.app.mails) == 1
        self.app.clock.advance(60)
        self.recover("ADA@example.TEST")
        assert len(self.app.mails) == 2
        assert self.reset(first) == (422, "invalid_one_time_token")
        assert self.reset(self.token()) == (200, None)

    def test_anything_else_is_no_token(self) -> None:
        for token in (
            "",
            "x" * 43,
            "x" * 10_000,
            self.session["refresh_token"],
            self.session["access_token"],
        ):
            assert self.reset(token) == (422, "invalid_one_time_token"), token
        for other in (None, 7, ["x"]):
            assert self.reset(other) == (422, "validation_failed")

    def test_get_does_not_use_up_a_token(self) -> None:
        self.recover()
        for path in ("/auth/reset", "/auth/verify"):
            answer = self.app.call("GET", f"{path}?token={self.token()}")
            assert (answer.status, answer.code) == (405, "method_not_allowed")
        assert self.reset(self.token()) == (200, None)

    def test_recovery_is_limited_per_address(self) -> None:
        self.app.reload(login_failures_max_per_address=2)
        self.recover("one@example.test")
        self.recover("two@example.test")
        answer = self.app.call("POST", "/auth/recover", {"email": "three@example.test"})
        assert (answer.status, answer.code) == (429, "rate_limited")

    def test_the_link_has_the_token(self) -> None:
        self.app.reload(recover_url="https://app.example.test/reset?lang=en#form")
        self.recover()
        assert f"https://app.example.test/reset?lang=en&token={self.token()}#form" in self.app.mails[-1].text
        assert "for 1 hour" in self.app.mails[-1].text

    def test_without_a_mail_server_recovery_is_501(self) -> None:
        app = AuthApp(self, mail=False)
        answer = app.call("POST", "/auth/recover", {"email": "ada@example.test"})
        assert (answer.status, answer.code) == (501, "email_not_configured")
        app.reload(confirm_email=True)
        assert app.sign_up().code == "email_not_configured"
        assert app.repository.accounts == {}
        app.reload(confirm_email=False)
        assert app.sign_up().status == 201

    def test_an_invalid_address_is_422(self) -> None:
        for email in (
            "a\r\nBcc: b@example.test",
            "a@example.test\nBcc: b@example.test",
            None,
            7,
            "x" * 10_000,
        ):
            answer = self.app.call("POST", "/auth/recover", {"email": email})
            assert (answer.status, answer.code) == (422, "validation_failed"), email


class Languages(Mailing):
    def setUp(self) -> None:
        self.folder = temporary_directory(self)
        self.write("de", "Neues Passwort")
        self.make(smtp=Smtp(templates_dir=str(self.folder)))

    def write(self, language: str, subject: str) -> None:
        (self.folder / language).mkdir(exist_ok=True)
        for name in NEEDED:
            (self.folder / language / f"{name}.txt").write_text(f"{subject}\n\n{{{{ token }}}}\n", "utf-8")

    def subject(self) -> str:
        return self.app.mails[-1].subject

    def sign_up(self, email: str, metadata: object, **headers: Any) -> None:
        body = {"email": email, "password": PASSWORD, "metadata": metadata}
        assert self.app.call("POST", "/auth/signup", body, **headers).status in {200, 201}

    def test_a_mail_is_in_the_users_language_else_in_that_of_the_request(self) -> None:
        self.sign_up("ada@example.test", {"locale": "de-AT"})
        self.sign_up("bob@example.test", {"locale": {"de": 1}})
        for email, accepted, subject in (
            ("ada@example.test", "en", "Neues Passwort"),
            ("bob@example.test", "de, en;q=0.5", "Neues Passwort"),
            ("bob@example.test", "en, de;q=0.5", "Set a new password"),
            ("bob@example.test", "\xff;q=\xff,", "Set a new password"),
        ):
            self.app.clock.advance(60)
            self.recover(email, Accept_Language=accepted)
            self.assertEqual(self.subject(), subject)

    def test_a_confirmation_is_in_the_language_of_the_request_too(self) -> None:
        self.app.reload(confirm_email=True)
        self.sign_up("ada@example.test", {}, Accept_Language="de")
        self.assertEqual(self.subject(), "Neues Passwort")
        self.app.clock.advance(60)
        self.app.call("POST", "/auth/resend", {"email": "ada@example.test"}, Accept_Language="fr")
        self.assertEqual(self.subject(), "Confirm your e-mail address")

    def test_a_reload_takes_templates_over_unless_one_is_broken(self) -> None:
        self.sign_up("ada@example.test", {"locale": "de"})
        self.write("de", "Passwort vergessen?")
        self.recover()
        self.assertEqual(self.subject(), "Neues Passwort")
        self.app.reload()
        self.app.clock.advance(60)
        self.recover()
        self.assertEqual(self.subject(), "Passwort vergessen?")
        self.write("de", "{{ broken }}")
        with self.assertRaises(TemplateFault):
            self.app.reload(allow_signup=False)
        self.app.clock.advance(60)
        self.recover()
        self.assertEqual(self.subject(), "Passwort vergessen?")
        self.sign_up("bob@example.test", {})


class Confirmation(Mailing):
    def setUp(self) -> None:
        self.make(confirm_email=True)
        self.answer = self.app.sign_up()

    def verify(self, token: str) -> tuple[int, object]:
        answer = self.app.call("POST", "/auth/verify", {"token": token})
        assert answer.status != 200 or answer.response.header("cache-control") == "no-store"
        return answer.status, answer.data if answer.status == 200 else answer.code

    def test_a_signup_has_no_session_until_the_token_is_posted(self) -> None:
        assert self.answer.status == 200
        assert self.answer.data["session"] is None
        assert self.answer.data["user"]["email"] == "ada@example.test"
        assert self.app.log_in(password="wrong").code == "invalid_credentials"
        refused = self.app.log_in()
        assert (refused.status, refused.code) == (403, "email_not_confirmed")
        status, session = self.verify(self.token())
        assert status == 200
        assert isinstance(session, dict)
        assert self.app.user(session["access_token"]).status == 200
        assert self.app.log_in().status == 200

    def test_a_client_that_hangs_up_gets_its_mail(self) -> None:
        """Otherwise the address would be taken, and nobody would have what confirms it."""
        gate: Deferred[None] = Deferred()
        self.app.hashes.gate = gate
        client = self.app.begin("POST", "/auth/signup", {"email": "bob@example.test", "password": PASSWORD})
        client.hang_up()
        gate.callback(None)
        answer = self.app.call("POST", "/auth/verify", {"token": self.token()})
        assert answer.data["user"]["email"] == "bob@example.test"

    def test_users_from_before_confirmation_was_required_may_still_log_in(self) -> None:
        self.app.reload(confirm_email=False)
        assert self.app.sign_up("bob@example.test").status == 201
        self.app.reload(confirm_email=True)
        assert self.app.log_in("bob@example.test").status == 200
        assert self.app.log_in("ada@example.test").code == "email_not_confirmed"

    def test_a_token_works_once_and_only_for_its_purpose(self) -> None:
        token = self.token()
        assert self.reset(token) == (422, "invalid_one_time_token")
        assert self.verify(token)[0] == 200
        assert self.verify(token) == (422, "invalid_one_time_token")

    def test_another_mail_can_be_requested(self) -> None:
        first = self.token()
        self.app.clock.advance(60)
        for email in ("ada@example.test", "nobody@example.test"):
            assert self.app.call("POST", "/auth/resend", {"email": email}).body == {
                "data": None,
                "error": None,
            }
        assert len(self.app.mails) == 2
        assert self.verify(first) == (422, "invalid_one_time_token")
        assert self.verify(self.token())[0] == 200

    def test_verify_url_is_the_link_for_confirmation(self) -> None:
        self.app.reload(
            recover_url="https://app.example.test/reset", verify_url="https://app.example.test/yes"
        )
        self.app.sign_up("bob@example.test")
        assert f"https://app.example.test/yes?token={self.token()}\n" in self.app.mails[-1].text

    def test_a_signup_is_not_stopped_by_the_limit_on_mails(self) -> None:
        self.app.reload(login_failures_max_per_address=1)
        for number in range(3):
            self.recover(f"nobody{number}@example.test")
        assert self.app.sign_up("bob@example.test").status == 200

    def test_resetting_the_password_by_mail_confirms_the_address(self) -> None:
        self.recover()
        assert self.reset(self.token(), PASSWORD + "!") == (200, None)
        assert self.app.log_in(password=PASSWORD + "!").status == 200
