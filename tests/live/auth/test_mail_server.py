"""Mails sent through a real mail server, with and without TLS, and through servers that differ from it."""

from __future__ import annotations

import hmac
import re
import ssl
import subprocess
import sys
import threading
from base64 import b64decode, b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_twisted
from attrs import evolve
from twisted.internet.defer import CancelledError
from twisted.internet.task import deferLater
from twisted.logger import formatEvent

from project_service.auth import mail_server as conversations
from project_service.auth.mail_message import message
from project_service.auth.mail_server import MailServer, MailServerError
from project_service.auth.mail_templates import Mail
from project_service.lifecycle import start
from project_service.settings.model import Secret, Smtp, Store
from tests.captured_log import captured_logs
from tests.certificates import Issued, issue
from tests.live.auth.mail_server import Reply, Talk, hang_up, mail_server, scripted, starttls
from tests.live.auth.service import all_of, api_on, log_in, post, reactor
from tests.live.daemon import eventually
from tests.live.logged import LoggedErrors
from tests.live.waiting import until
from tests.temporary import free_port

MAIL = Mail(
    "ada@example.test", "Set a new password", "Your token:\nkC9x_Zb4-QmT7vRw2LpE8yHdN1sJ6fAu3gXo5iVtB0q\n"
)
PLAIN = Smtp(host="127.0.0.1", sender="noreply@example.test", tls="none")
LOGGED_IN = evolve(PLAIN, username="mailer", password=Secret("hush"))
OFFERS_ALL = ("250-here", "250 AUTH CRAM-MD5 PLAIN LOGIN")


async def why_not(settings: Smtp, mail: Mail | None = MAIL) -> MailServerError:
    """Why a mail is not accepted, or with None, why the server cannot be used."""
    server = MailServer(reactor, settings)
    with pytest.raises(MailServerError) as fault:
        await (server.reach() if mail is None else server.send(mail))
    shown = str(fault.value)
    for private in ("hush", "kC9x_Zb4", b64encode(b"\0mailer\0hush").decode(), b64encode(b"hush").decode()):
        assert private not in shown
    return fault.value


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

            async def counted() -> bool:
                shown = (await api.request("GET", "/metrics", key=None))[2].decode()
                return 'project_service_mails_total{outcome="sent"} 1.0' in shown

            # When the mail server has said that it has the mail, which it has before it says so.
            await until(counted)


@pytest_twisted.ensureDeferred
async def test_the_log_says_why_a_mail_is_not_accepted_without_its_token(
    database: str, store_settings: Store, tmp_path: Path, logged_errors: LoggedErrors
) -> None:
    def quote(talk: Talk) -> None:
        """As some filters do."""
        quoted = talk.server.mails[-1].decode().replace("\r\n", " ")[-1000:]
        talk.say(f"554 5.7.1 This is spam, {talk.server.heard[-2]}: {quoted}")

    with scripted(END=quote) as server, captured_logs() as events:
        smtp = {"host": "127.0.0.1", "port": server.port, "sender": "noreply@example.test", "tls": "none"}
        own = {"public_url": "https://api.example.com"}
        async with api_on(database, store_settings, tmp_path, smtp=smtp, server=own) as api:
            await api.sign_up("ada@example.test")
            await post(api, "/auth/recover", {"email": "ada@example.test"})
            await until(lambda: bool(logged_errors.flush("an e-mail was given up")))
    assert server.heard[0] == "ehlo api.example.com"
    (mail,) = server.mails
    (token,) = re.findall(rb"^([A-Za-z0-9_-]{43})\r$", mail, re.MULTILINE)
    log = "\n".join(formatEvent(one) for one in events)
    assert (
        "an e-mail was not accepted: the mail server refuses the e-mail (554 5.7.1 This is spam, RCPT TO:<…"
        in log
    )
    for private in (token.decode(), token.decode()[:8], "ada@example.test", "new password"):
        assert private not in log


# Mails are sent as they are.


@pytest_twisted.ensureDeferred
async def test_mails_of_any_size_arrive_whole_whatever_their_lines_begin_with() -> None:
    """A client that looks for dots piece by piece would end the mail at one that begins a piece, and the rest of the
    mail would be commands."""
    attack = "x\n.\nMAIL FROM:<eve@example.test>\nRCPT TO:<eve@example.test>\nDATA\nInjected\n.\n"
    texts = [
        # A lone dot at each place around the ends of pieces of 16 KiB and of 64 KiB.
        *(
            "a" * 61 + "\n" + ("b" * 62 + "\n") * (size // 64 - 8) + "c" * shift + "\n" + attack * 20
            for size in (16384, 65536)
            for shift in range(0, 64, 3)
        ),
        ".\n" * 20000,
        "..\n.\n...\n.x\n" * 5000,
        "ä.\n.ö\n.\n" * 5000,
        ".",
    ]
    async with mail_server() as (mailbox, port):
        server = MailServer(reactor, evolve(PLAIN, port=port), clock=lambda: 0.0, new_id=lambda: "id")
        for text in texts:
            mail = evolve(MAIL, text=text)
            await server.send(mail)
            accepted = mailbox.mails.pop()
            assert mailbox.mails == []
            assert accepted.content == message(mail, "noreply@example.test", 0.0, "id")
            assert accepted.rcpt_tos == ["ada@example.test"]


@pytest_twisted.ensureDeferred
async def test_the_service_introduces_itself_by_its_name() -> None:
    for settings, public_url, name in (
        (PLAIN, None, "example.test"),
        (PLAIN, "https://api.example.com:8443", "api.example.com"),
        (evolve(PLAIN, helo="me.example.com"), "https://api.example.com", "me.example.com"),
    ):
        with scripted(EHLO="500 what?") as server:
            await MailServer(reactor, evolve(settings, port=server.port), public_url).send(MAIL)
        assert server.heard[:2] == [f"ehlo {name}", f"helo {name}"]
    with scripted() as server:
        await MailServer(reactor, evolve(PLAIN, sender=None, port=server.port)).reach()
    assert re.fullmatch(r"ehlo ([^. ]+\.[^ ]+|\[.+\])", server.heard[0])


# Servers that are older, simpler or odder than others.


@pytest.mark.parametrize(
    "refusal", ["500 what?", "502 5.5.1 not implemented", "504 no", "550 no", "421 no", hang_up]
)
@pytest_twisted.ensureDeferred
async def test_a_server_without_ehlo_is_spoken_to_with_helo(refusal: Reply) -> None:
    with scripted(EHLO=refusal) as server:
        await MailServer(reactor, evolve(PLAIN, port=server.port)).send(MAIL)
        assert len(server.mails) == 1
    with scripted(EHLO=refusal, HELO="504 5.5.2 your name?") as server:
        refused = await why_not(evolve(PLAIN, port=server.port))
        assert str(refused) == "the mail server refuses EHLO and HELO (504 5.5.2 your name?)"
    with scripted(EHLO=refusal) as server:
        # Then it has neither of these.
        secured = str(await why_not(evolve(PLAIN, port=server.port, tls="starttls")))
        assert secured.endswith(("does not offer STARTTLS", "closes the connection"))
        logged_in = str(await why_not(evolve(LOGGED_IN, port=server.port)))
        assert logged_in.endswith(("offers no way to log in", "closes the connection"))


class Accounts:
    """Replies to AUTH, by the methods that are accepted. It notes which were tried."""

    def __init__(self, *accepted: str, username: str = "mailer", password: str = "hush") -> None:
        self.accepted = accepted
        self.username, self.password = username.encode(), password.encode()
        self.tried: list[str] = []

    def __call__(self, talk: Talk) -> None:
        _, method, *initial = talk.server.heard[-1].split(" ")
        self.tried.append(method)
        expected: bytes = b"\0%b\0%b" % (self.username, self.password)
        if method == "PLAIN":
            given = b64decode(initial[0])
        elif method == "LOGIN":
            given = b"\0%b\0%b" % (self.ask(talk, b"Username:"), self.ask(talk, b"Password:"))
        else:
            given = self.ask(talk, b"<1@here>")
            expected = b"%b %b" % (
                self.username,
                hmac.new(self.password, b"<1@here>", "md5").hexdigest().encode(),
            )
        if method in self.accepted and given == expected:
            talk.say("235 2.7.0 welcome")
        else:
            talk.say(
                f"535 5.7.8 {given.decode('utf-8', 'replace')} is not welcome by {method}".replace("\0", "")
            )

    @staticmethod
    def ask(talk: Talk, question: bytes) -> bytes:
        talk.say(f"334 {b64encode(question).decode()}")
        return b64decode(talk.hear())


@pytest.mark.parametrize("accepted", ["CRAM-MD5", "PLAIN", "LOGIN"])
@pytest.mark.parametrize(
    "offers",
    [
        OFFERS_ALL,
        ("250-here", "250 AUTH=CRAM-MD5 PLAIN LOGIN"),
        ("250-here", "250-AUTH=LOGIN", "250-AUTH=PLAIN", "250 AUTH CRAM-MD5"),
        ("250-here", "250-auth login plain", "250 auth cram-md5 x-other"),
        ("250-here", "250-Auth=Login", "250 aUTH Plain CRAM-md5 GSSAPI"),
    ],
)
@pytest_twisted.ensureDeferred
async def test_each_way_to_log_in_is_tried(accepted: str, offers: tuple[str, ...]) -> None:
    accounts = Accounts(accepted)
    with scripted(EHLO=offers, AUTH=accounts) as server:
        await MailServer(reactor, evolve(LOGGED_IN, port=server.port)).send(MAIL)
        assert len(server.mails) == 1
    assert (
        accounts.tried == ["CRAM-MD5", "PLAIN", "LOGIN"][: ["CRAM-MD5", "PLAIN", "LOGIN"].index(accepted) + 1]
    )


@pytest.mark.parametrize("accepted", ["CRAM-MD5", "PLAIN", "LOGIN"])
@pytest_twisted.ensureDeferred
async def test_names_and_passwords_may_be_of_any_letters(accepted: str) -> None:
    accounts = Accounts(accepted, username="bücher@example.test", password="пароль " * 30)
    settings = evolve(PLAIN, username="bücher@example.test", password=Secret("пароль " * 30))
    with scripted(EHLO=OFFERS_ALL, AUTH=accounts) as server:
        await MailServer(reactor, evolve(settings, port=server.port)).reach()


@pytest_twisted.ensureDeferred
async def test_the_log_has_what_the_server_says_to_each_way_to_log_in_but_no_credentials() -> None:
    with scripted(EHLO=OFFERS_ALL, AUTH=Accounts()) as server:
        refused = await why_not(evolve(LOGGED_IN, port=server.port), None)
    said = "is not welcome by"
    assert str(refused) == (
        "the mail server refuses the user name or the password "
        f"(CRAM-MD5: 535 5.7.8 … {said} CRAM-MD5; PLAIN: 535 5.7.8 … {said} PLAIN; LOGIN: 535 5.7.8 … {said} LOGIN)"
    )
    assert not refused.is_final


def not_base64(talk: Talk) -> None:
    if "PLAIN" in talk.server.heard[-1]:
        talk.say("235 welcome")
    else:
        talk.say("334 *not base64*" if "CRAM" in talk.server.heard[-1] else "334 ")


def endless_questions(talk: Talk) -> None:
    while "LOGIN" not in talk.server.heard[-1]:
        talk.say("334 PDFAaGVyZT4=")
        if talk.hear() == "*":
            return talk.say("501 cancelled")
    return talk.say("235 welcome")


def refuse_and_hang_up(talk: Talk) -> None:
    talk.say("535 5.7.8 no")
    hang_up(talk)


@pytest_twisted.ensureDeferred
async def test_a_way_to_log_in_that_fails_oddly_does_not_end_the_others() -> None:
    for odd in (not_base64, endless_questions):
        with scripted(EHLO=OFFERS_ALL, AUTH=odd) as server:
            await MailServer(reactor, evolve(LOGGED_IN, port=server.port)).send(MAIL)
            assert len(server.mails) == 1


@pytest_twisted.ensureDeferred
async def test_a_server_that_hangs_up_is_called_again_for_the_other_ways() -> None:
    for hangs_up in (refuse_and_hang_up, hang_up):
        for accepted in ("CRAM-MD5", "PLAIN", "LOGIN"):
            accounts = Accounts(accepted)

            def log_in(talk: Talk, accounts: Accounts = accounts, hangs_up: Any = hangs_up) -> None:
                is_last = accounts.accepted[0] in talk.server.heard[-1]
                (accounts if is_last else hangs_up)(talk)

            with scripted(EHLO=OFFERS_ALL, AUTH=log_in) as server:
                await MailServer(reactor, evolve(LOGGED_IN, port=server.port)).send(MAIL)
                assert len(server.mails) == 1
    no, closes = "535 5.7.8 no", "the mail server closes the connection"
    for hangs_up, said in ((refuse_and_hang_up, no), (hang_up, closes)):
        with scripted(EHLO=OFFERS_ALL, AUTH=hangs_up) as server:
            refused = str(await why_not(evolve(LOGGED_IN, port=server.port)))
        assert f"(CRAM-MD5: {said}; PLAIN: {said}; LOGIN: {said})" in refused
        assert server.connections <= 4


@pytest_twisted.ensureDeferred
async def test_the_password_has_to_be_there() -> None:
    with scripted(EHLO=OFFERS_ALL) as server:
        refused = await why_not(evolve(LOGGED_IN, password=None, port=server.port))
        assert str(refused) == "smtp.password is missing"


# Refusals.


@pytest.mark.parametrize(
    ("replies", "words", "is_final"),
    [
        ({"CONNECT": "554 5.7.1 go away"}, "refuses to talk (554 5.7.1 go away)", False),
        ({"CONNECT": "421 4.3.2 busy"}, "refuses to talk (421 4.3.2 busy)", False),
        ({"MAIL": "450 4.7.1 Greylisted"}, "refuses the sender (450 4.7.1 Greylisted)", False),
        ({"MAIL": "553 5.7.1 not yours"}, "refuses the sender (553 5.7.1 not yours)", True),
        ({"MAIL": "421 4.7.0 bye"}, "refuses the sender (421 4.7.0 bye)", False),
        ({"RCPT": "450 4.2.0 Greylisted for 300 s"}, "the recipient (450 4.2.0 Greylisted for 300 s)", False),
        ({"RCPT": "421 4.7.0 bye"}, "refuses the recipient (421 4.7.0 bye)", False),
        ({"RCPT": "550 5.1.1 <ada@example.test>: who?"}, "refuses the recipient (550 5.1.1 <…>: who?)", True),
        ({"RCPT": ("550-5.1.1 no", "550 5.1.1 such user")}, "recipient (550 5.1.1 no 5.1.1 such user)", True),
        ({"DATA": "451 4.3.0 no room"}, "refuses the e-mail (451 4.3.0 no room)", False),
        ({"DATA": "554 5.5.1 no"}, "refuses the e-mail (554 5.5.1 no)", True),
        ({"END": "451 4.3.0 no room"}, "refuses the e-mail (451 4.3.0 no room)", False),
        ({"END": f"554 5.7.1 spam: {MAIL.text.split()[-1]}"}, "refuses the e-mail (554 5.7.1 spam…)", True),
        ({"END": "554 \x1b[2J\tspam"}, "refuses the e-mail (554 ?[2J?spam)", True),
        ({"END": "554 " + "x y " * 300}, "x y x y)", True),
        (
            {"END": ("554-" + "x y " * 500, "554-" + "x y " * 500, "554 no")},
            "refuses the e-mail (554 …)",
            True,
        ),
        ({"END": hang_up}, "the mail server closes the connection", False),
        ({"DATA": hang_up}, "the mail server closes the connection", False),
        ({"RCPT": hang_up}, "the mail server closes the connection", False),
        ({"EHLO": hang_up, "HELO": hang_up}, "the mail server closes the connection", False),
        ({"CONNECT": hang_up}, "the mail server closes the connection", False),
        ({"CONNECT": "SSH-2.0-hush"}, "what answers is not a mail server", False),
        ({"RCPT": "hush"}, "what answers is not a mail server", False),
        ({"RCPT": "250" + "x" * 10000}, "what answers is not a mail server", False),
        ({"RCPT": "250-" + "x" * 10000}, "what answers is not a mail server", False),
    ],
)
@pytest_twisted.ensureDeferred
async def test_a_refusal_is_reported_with_the_servers_code_and_words(
    replies: dict[str, Reply], words: str, is_final: bool
) -> None:
    with scripted(**replies) as server:
        refused = await why_not(evolve(PLAIN, port=server.port))
    assert words in str(refused)
    assert len(str(refused)) < 500
    assert refused.is_final == is_final


@pytest_twisted.ensureDeferred
async def test_other_codes_of_success_and_any_reply_to_quit_will_do() -> None:
    for ending in ("500 what?", "nonsense", hang_up):
        with scripted(MAIL="200 fine", RCPT="251 will forward", END="299 fine", QUIT=ending) as server:
            await MailServer(reactor, evolve(PLAIN, port=server.port)).send(MAIL)
            await MailServer(reactor, evolve(PLAIN, port=server.port)).reach()
            assert len(server.mails) == 1
            assert server.heard[-1] == "QUIT"


@pytest_twisted.ensureDeferred
async def test_a_host_that_cannot_be_reached_is_reported() -> None:
    for settings, words in (
        (evolve(PLAIN, port=free_port()), "the mail server cannot be reached: connection refused"),
        (evolve(PLAIN, host="nowhere.invalid"), "smtp.host has no address"),
        (evolve(PLAIN, host="x" * 64 + ".test"), "characters that SMTP does not accept"),
        (evolve(PLAIN, sender="hush"), "not an e-mail address"),
    ):
        assert words in str(await why_not(settings))
    assert "characters" in str(await why_not(PLAIN, evolve(MAIL, recipient="zoë@example.test")))


# TLS.


def context_of(issued: Issued, folder: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*issued.written(folder))
    return context


def offering(*offers: str) -> Reply:
    return ("250-here", *(f"250-{one}" for one in offers), "250 8BITMIME")


@pytest.mark.parametrize("offer", ["STARTTLS", "starttls", "StartTLS", "STARTTLS "])
@pytest_twisted.ensureDeferred
async def test_starttls_is_seen_in_any_case_and_comes_before_all_else(offer: str, tmp_path: Path) -> None:
    accounts = Accounts("PLAIN")
    authority = tmp_path / "certificate.pem"
    context = context_of(issue("localhost"), tmp_path)
    settings = evolve(LOGGED_IN, host="localhost", tls="starttls", ca_file=str(authority))
    with scripted(context, EHLO=offering(offer, "AUTH PLAIN"), AUTH=accounts) as server:
        await MailServer(reactor, evolve(settings, port=server.port)).send(MAIL)
    commands = [line.partition(" ")[0].upper() for line in server.heard]
    assert commands == ["EHLO", "STARTTLS", "EHLO", "AUTH", "MAIL", "RCPT", "DATA", "QUIT"]


@pytest_twisted.ensureDeferred
async def test_starttls_is_required_if_configured() -> None:
    """A server without it gets neither password nor mail, nor does one whose offer somebody has removed."""
    for offers, reply, words in (
        (offering("AUTH PLAIN"), starttls, "the mail server does not offer STARTTLS"),
        (offering("XXXXXXXX", "AUTH PLAIN"), starttls, "the mail server does not offer STARTTLS"),
        (offering("STARTTLS", "AUTH PLAIN"), "454 4.7.0 not now", "refuses STARTTLS (454 4.7.0 not now)"),
        (offering("STARTTLS", "AUTH PLAIN"), "250 ok", "refuses STARTTLS (250 ok)"),
        (offering("STARTTLS", "AUTH PLAIN"), hang_up, "the mail server closes the connection"),
    ):
        with scripted(EHLO=offers, STARTTLS=reply, AUTH=Accounts("PLAIN")) as server:
            assert words in str(await why_not(evolve(LOGGED_IN, tls="starttls", port=server.port)))
        assert {line.partition(" ")[0].upper() for line in server.heard} <= {"EHLO", "STARTTLS"}


@pytest_twisted.ensureDeferred
async def test_starttls_is_not_used_if_tls_is_none_even_if_offered() -> None:
    """A relay on the same machine may offer it with a certificate that nobody trusts."""
    with scripted(EHLO=offering("STARTTLS")) as server:
        await MailServer(reactor, evolve(PLAIN, port=server.port)).send(MAIL)
    assert "STARTTLS" not in server.heard


@pytest.mark.parametrize("half", ["220 go ahead\r\n250 more", "220 go ahead\r\n\x16\x03", "220 go ahead"])
@pytest_twisted.ensureDeferred
async def test_half_a_handshake_is_no_connection(half: str) -> None:
    def begin(talk: Talk) -> None:
        talk.say(half)
        talk.server.closing.wait(0.2)
        hang_up(talk)

    with scripted(EHLO=offering("STARTTLS", "AUTH PLAIN"), STARTTLS=begin) as server:
        shown = str(await why_not(evolve(LOGGED_IN, tls="starttls", port=server.port)))
    assert "closes the connection" in shown or "no TLS with the mail server" in shown
    assert all(line.partition(" ")[0].upper() in ("EHLO", "STARTTLS") for line in server.heard)


@pytest_twisted.ensureDeferred
async def test_what_is_said_before_tls_does_not_count_within_it(tmp_path: Path) -> None:
    """Somebody on the way could add replies after the one to STARTTLS."""
    context = context_of(issue("localhost"), tmp_path)
    settings = evolve(LOGGED_IN, host="localhost", tls="starttls", ca_file=str(tmp_path / "certificate.pem"))

    def inject(talk: Talk) -> None:
        talk.say("220 go ahead", "250-evil", "250 AUTH LOGIN", "334 VXNlcm5hbWU6")
        talk.secure()

    def greet(talk: Talk) -> None:
        secured = "STARTTLS" in talk.server.heard
        talk.say("250-here", "250 AUTH PLAIN" if secured else "250 STARTTLS")

    accounts = Accounts("PLAIN")
    with scripted(context, EHLO=greet, STARTTLS=inject, AUTH=accounts) as server:
        await MailServer(reactor, evolve(settings, port=server.port)).send(MAIL)
    assert accounts.tried == ["PLAIN"]

    def greet_otherwise(talk: Talk) -> None:
        """The offer that was made before TLS does not count either."""
        talk.say(
            "250-here", "250 SIZE" if "STARTTLS" in talk.server.heard else "250-AUTH PLAIN\r\n250 STARTTLS"
        )

    with scripted(context, EHLO=greet_otherwise, AUTH=accounts) as server:
        assert "no way to log in" in str(await why_not(evolve(settings, port=server.port)))


@pytest.mark.parametrize("tls", ["starttls", "tls"])
@pytest_twisted.ensureDeferred
async def test_mails_are_sent_only_to_a_server_with_a_trusted_certificate(
    tls: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = context_of(issue("localhost"), tmp_path)
    path, other = str(tmp_path / "certificate.pem"), tmp_path / "other.pem"
    other.write_bytes(issue("localhost").pem)
    options = (
        {"tls_context": context, "require_starttls": True} if tls == "starttls" else {"ssl_context": context}
    )
    async with mail_server(**options) as (mailbox, port):
        settings = Smtp(host="localhost", port=port, sender="noreply@example.test", tls=tls)
        for untrusting in (settings, evolve(settings, ca_file=str(other))):
            assert "the mail server's certificate is not trusted: self" in str(await why_not(untrusting))
        assert mailbox.mails == []
        await MailServer(reactor, evolve(settings, ca_file=path)).send(MAIL)
        assert len(mailbox.mails) == 1
        monkeypatch.setenv("SSL_CERT_FILE", path)
        await MailServer(reactor, settings).send(MAIL)
        assert len(mailbox.mails) == 2
        # It replaces the system's authorities.
        assert "is not trusted" in str(await why_not(evolve(settings, ca_file=str(other))))
        assert "smtp.ca_file cannot be used: No such" in str(
            await why_not(evolve(settings, ca_file="/nowhere"))
        )


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion.TLSv1")
@pytest.mark.parametrize("tls", ["starttls", "tls"])
@pytest_twisted.ensureDeferred
async def test_a_certificate_of_another_name_or_an_old_version_of_tls_is_refused(
    tls: str, tmp_path: Path
) -> None:
    def secure_and_greet(talk: Talk) -> None:
        if tls == "tls":
            talk.secure()
        talk.say("220 here")

    context = context_of(issue("localhost"), tmp_path)
    settings = evolve(LOGGED_IN, tls=tls, ca_file=str(tmp_path / "certificate.pem"))
    replies = {
        "CONNECT": secure_and_greet,
        "EHLO": offering("AUTH PLAIN", "STARTTLS"),
        "AUTH": Accounts("PLAIN"),
    }
    with scripted(context, **replies) as server:
        await MailServer(reactor, evolve(settings, port=server.port)).send(MAIL)
        # The server has the same address under this name, which its certificate does not have.
        other = str(await why_not(evolve(settings, host="127.1", port=server.port)))
        assert other == "the mail server's certificate is for another name than smtp.host"
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.minimum_version = ssl.TLSVersion.TLSv1
    context.maximum_version = ssl.TLSVersion.TLSv1_1
    with scripted(context, **replies) as server:
        assert "no TLS with the mail server" in str(await why_not(evolve(settings, port=server.port)))


# Servers that are slow or silent.


def slowly(reply: Callable[[Talk], None]) -> Callable[[Talk], None]:
    def say(talk: Talk) -> None:
        talk.server.closing.wait(0.1)
        reply(talk)

    return say


@pytest_twisted.ensureDeferred
async def test_a_slow_server_gets_its_mail() -> None:
    def drip(talk: Talk) -> None:
        for byte in "250-slow\r\n250 ok\r":
            talk.server.closing.wait(0.01)
            talk._socket.sendall(byte.encode())
        talk.say("")

    with scripted(CONNECT=slowly(lambda talk: talk.say("220 here")), EHLO=drip, MAIL=drip) as server:
        await MailServer(reactor, evolve(PLAIN, port=server.port)).send(MAIL)
        assert len(server.mails) == 1


@pytest.mark.parametrize("step", ["CONNECT", "EHLO", "STARTTLS", "AUTH", "MAIL", "RCPT", "DATA", "END"])
@pytest_twisted.ensureDeferred
async def test_each_step_has_a_timeout(step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversations, "TIMEOUT_SECONDS", 0.2)
    monkeypatch.setattr(conversations, "MAIL_SECONDS", 0.3 if step in ("DATA", "END") else 60.0)
    settings = evolve(LOGGED_IN, tls="starttls" if step == "STARTTLS" else "none")
    replies: dict[str, Reply] = {"EHLO": offering("AUTH PLAIN", "STARTTLS"), "AUTH": Accounts("PLAIN")}
    with scripted(**{**replies, step: Talk.hang}) as server:
        late = await why_not(evolve(settings, port=server.port))
        assert "does not answer in time" in str(late)
        assert not late.is_final


@pytest_twisted.ensureDeferred
async def test_a_server_may_take_longer_over_the_mail_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """It looks at all of it. If it accepted a mail after we had left, the mail would be sent again."""
    monkeypatch.setattr(conversations, "TIMEOUT_SECONDS", 3.0)

    def accept_late(talk: Talk) -> None:
        talk.server.closing.wait(4.0)
        talk.say("250 ok")

    with scripted(END=accept_late) as server:
        await MailServer(reactor, evolve(PLAIN, port=server.port)).send(MAIL)
        assert server.connections == 1


@pytest.mark.parametrize("said", ["220-wait\r\n", "2"])
@pytest_twisted.ensureDeferred
async def test_an_answer_that_does_not_end_is_given_up(said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither its lines are kept forever, nor the slot of a mail, of which few are sent at a time."""
    monkeypatch.setattr(conversations, "MAIL_SECONDS", 0.5)

    def drip(talk: Talk) -> None:
        while not talk.server.closing.wait(0.02):
            talk._socket.sendall(said.encode())

    with scripted(CONNECT=drip) as server:
        settings = evolve(PLAIN, port=server.port)
        assert "does not answer in time" in str(await why_not(settings))
    monkeypatch.undo()

    def flood(talk: Talk) -> None:
        while not talk.server.closing.is_set():
            talk._socket.sendall(said.encode() * 1000)

    with scripted(CONNECT=flood) as server:
        assert "not a mail server" in str(await why_not(evolve(PLAIN, port=server.port)))


@pytest_twisted.ensureDeferred
async def test_a_mail_that_was_accepted_in_time_is_not_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversations, "MAIL_SECONDS", 5.0)
    with scripted(QUIT=Talk.hang) as server:
        await MailServer(reactor, evolve(PLAIN, port=server.port)).send(MAIL)
        assert len(server.mails) == 1


@pytest_twisted.ensureDeferred
async def test_few_conversations_go_on_at_a_time_and_none_in_the_reactors_threads() -> None:
    """Whoever gives up waiting ends the conversation, too."""
    with scripted(CONNECT=Talk.hang) as silent:
        server = MailServer(reactor, evolve(PLAIN, port=silent.port))
        waiting = [start(server.send(MAIL)) for _ in range(9)]
        await until(lambda: silent.connections == conversations.MAX_CONCURRENT)
        names = [one.name for one in threading.enumerate() if one.name == "mail"]
        assert len(names) == conversations.MAX_CONCURRENT
        # The reactor goes on, and so does what it has threads for.
        await deferLater(reactor, 0.05, lambda: None)
        assert silent.connections == conversations.MAX_CONCURRENT
        assert await reactor.resolve("localhost")
        for one in waiting:
            one.cancel()
            with pytest.raises(CancelledError):
                await one
        await until(lambda: not any(one.name == "mail" for one in threading.enumerate()))
    with scripted() as polite:
        # All slots are free again.
        server = MailServer(reactor, evolve(PLAIN, port=polite.port))
        await all_of(*(server.send(MAIL) for _ in range(9)))
        assert len(polite.mails) == 9


@pytest_twisted.ensureDeferred
async def test_a_resolver_that_hangs_stops_neither_the_reactor_nor_the_mail_that_gives_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(conversations, "MAIL_SECONDS", 0.3)
    hanging = threading.Event()

    def hang(*arguments: Any, **options: Any) -> Any:
        hanging.wait(60)
        raise OSError

    monkeypatch.setattr("socket.getaddrinfo", hang)
    server = MailServer(reactor, PLAIN)
    try:
        for _ in range(conversations.MAX_CONCURRENT + 1):
            with pytest.raises(MailServerError, match="in time"):
                await server.send(MAIL)
        hung = [one for one in threading.enumerate() if one.name == "mail"]
        assert len(hung) == conversations.MAX_CONCURRENT
    finally:
        hanging.set()
    await until(lambda: not any(one.is_alive() for one in hung))


LEAVES = """
import sys, threading
from twisted.internet import reactor
from project_service.auth import mail_server
from project_service.auth.mail_templates import Mail
from project_service.lifecycle import start
from project_service.settings.model import Smtp
mail_server.TIMEOUT_SECONDS = 300.0
settings = Smtp(host="127.0.0.1", port=int(sys.argv[1]), sender="a@example.test", tls="none")
server = mail_server.MailServer(reactor, settings)
for _ in range(9):
    start(server.send(Mail("ada@example.test", "s", "t"))).addErrback(print)

def stop_when_told():
    sys.stdin.read()
    reactor.callFromThread(reactor.stop)

reactor.callWhenRunning(threading.Thread(target=stop_when_told).start)
reactor.run()
print("left")
"""


def test_a_silent_server_does_not_keep_the_process_from_ending() -> None:
    with (
        scripted(CONNECT=Talk.hang) as silent,
        subprocess.Popen(
            [sys.executable, "-c", LEAVES, str(silent.port)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process,
    ):
        try:
            eventually(lambda: silent.connections == conversations.MAX_CONCURRENT, "as many as may be")
            assert process.communicate(timeout=100) == ("left\n", "")
            assert process.returncode == 0
        finally:
            process.kill()
    assert silent.connections == conversations.MAX_CONCURRENT
