"""Mails sent through a real mail server, with and without TLS."""

from __future__ import annotations

import re
import ssl
from pathlib import Path
from typing import Any

import pytest
import pytest_twisted
from aiosmtpd.smtp import AuthResult, LoginPassword
from attrs import evolve
from twisted.internet.error import TimeoutError
from twisted.internet.protocol import Factory, Protocol, connectionDone
from twisted.internet.task import LoopingCall
from twisted.mail.smtp import SMTPProtocolError
from twisted.python.failure import Failure

from project_service.auth import mail
from project_service.auth.mail import MailServer
from project_service.auth.mail_templates import Mail
from project_service.lifecycle import start, with_timeout
from project_service.settings.model import Secret, Smtp, Store
from tests.certificates import issue
from tests.live.auth.mail_server import mail_server
from tests.live.auth.service import PASSWORD, api_on, code_for, log_in, post, reactor
from tests.live.waiting import until
from tests.temporary import free_port


@pytest_twisted.ensureDeferred
async def test_a_password_is_recovered_through_a_real_mail_server(
    database: str, store_settings: Store, tmp_path: Path
) -> None:
    async with mail_server() as (mailbox, port):
        smtp = {"host": "127.0.0.1", "port": port, "sender": "Project <noreply@example.test>", "tls": "none"}
        async with api_on(database, store_settings, tmp_path, smtp=smtp) as api:
            await api.sign_up("ada@bücher.test")
            for email in ("ada@bücher.test", "nobody@example.test"):
                assert await post(api, "/auth/recover", {"email": email}) == (
                    200,
                    {"data": None, "error": None},
                )
            await until(mailbox.has_mail)
            (mail,) = mailbox.mails
            assert (mail.mail_from, mail.rcpt_tos) == ("noreply@example.test", ["ada@xn--bcher-kva.test"])
            token = re.findall(rb"^([A-Za-z0-9_-]{43})\r$", mail.content, re.MULTILINE)[0].decode()
            body = {"token": token, "password": "a brand new one"}
            assert (await post(api, "/auth/reset", body))[0] == 200
            assert (await log_in(api, "ada@bücher.test", "a brand new one"))[0] == 200


@pytest.mark.filterwarnings("ignore:Requiring AUTH while not requiring TLS")
@pytest_twisted.ensureDeferred
async def test_the_mail_servers_password_is_used(
    database: str, store_settings: Store, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"auth_required": True, "auth_require_tls": False}
    logins: list[bytes] = []

    def authenticate(server: Any, session: Any, envelope: Any, mechanism: str, data: Any) -> Any:
        assert isinstance(data, LoginPassword)
        logins.append(data.login)
        return AuthResult(success=data.password == b"secret")

    async with mail_server(**options, authenticator=authenticate) as (mailbox, port):
        smtp = {
            "host": "127.0.0.1",
            "port": port,
            "sender": "noreply@example.test",
            "tls": "none",
            "username": "mailer",
            "password": Secret("secret"),
        }
        async with api_on(database, store_settings, tmp_path, smtp=smtp, auth={"confirm_email": True}) as api:
            status, answer = await post(
                api, "/auth/signup", {"email": "a@example.test", "password": PASSWORD}
            )
            assert (status, answer["data"]["session"]) == (200, None)
            await until(mailbox.has_mail)
            assert logins == [b"mailer"]
            token = re.findall(rb"^([A-Za-z0-9_-]{43})\r$", mailbox.mails[0].content, re.MULTILINE)[0]
            status, answer = await post(api, "/auth/verify", {"token": token.decode()})
            assert status == 200
            assert await code_for(api, answer["data"]["access_token"]) == "ok"


@pytest_twisted.ensureDeferred
async def test_starttls_is_required_if_configured() -> None:
    """A server without it gets neither password nor mail."""
    async with mail_server() as (mailbox, port):
        settings = Smtp(host="127.0.0.1", port=port, sender="noreply@example.test", tls="starttls")
        server = MailServer(reactor, settings)
        with pytest.raises(Exception, match="TLS"):
            await server.send(Mail("ada@example.test", "s", "t"))
        assert mailbox.mails == []
        with pytest.raises(Exception, match="refused"):
            await MailServer(reactor, evolve(settings, port=free_port())).send(
                Mail("ada@example.test", "s", "t")
            )


@pytest.mark.parametrize("tls", ["starttls", "tls"])
@pytest_twisted.ensureDeferred
async def test_mails_are_sent_only_to_a_server_with_a_trusted_certificate(
    tls: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, key = issue("localhost").written(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(path, key)
    options = (
        {"tls_context": context, "require_starttls": True} if tls == "starttls" else {"ssl_context": context}
    )
    async with mail_server(**options) as (mailbox, port):
        settings = Smtp(host="localhost", port=port, sender="noreply@example.test", tls=tls)
        server = MailServer(reactor, settings)
        with pytest.raises(Exception, match="certificate verify failed"):
            await server.send(Mail("ada@example.test", "s", "t"))
        assert mailbox.mails == []
        monkeypatch.setenv("SSL_CERT_FILE", str(path))
        await server.send(Mail("ada@example.test", "s", "t"))
        assert len(mailbox.mails) == 1


@pytest.mark.parametrize("pause", [0.0, 0.2])
@pytest_twisted.ensureDeferred
async def test_an_answer_that_does_not_end_is_given_up(pause: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither its lines are kept forever, nor the slot of a mail, of which few are sent at a time."""
    monkeypatch.setattr(mail, "MAIL_SECONDS", 1.0)
    listening = reactor.listenTCP(0, Factory.forProtocol(lambda: Endless(pause)), interface="127.0.0.1")
    settings = Smtp(
        host="127.0.0.1", port=listening.getHost().port, sender="noreply@example.test", tls="none"
    )
    server = MailServer(reactor, settings)
    sending = start(server.send(Mail("ada@example.test", "s", "t")))
    try:
        with pytest.raises(TimeoutError if pause else SMTPProtocolError):
            await with_timeout(reactor, 10.0, sending, lambda: AssertionError("it is not given up"))
    finally:
        await listening.stopListening()


class Endless(Protocol):
    """A server whose greeting has more and more lines, ``pause`` seconds apart."""

    def __init__(self, pause: float) -> None:
        self._lines = LoopingCall(self._greet, 1 if pause else 100)
        self._pause = pause

    def connectionMade(self) -> None:
        self._lines.start(self._pause)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self._lines.stop()

    def _greet(self, lines: int) -> None:
        assert self.transport is not None
        self.transport.write(b"220-wait\r\n" * lines)
