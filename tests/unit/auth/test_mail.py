"""How mails are sent: their format, the outbox, the folder, and the conversation with the mail server."""

from __future__ import annotations

import email
from email.policy import default
from functools import partial
from typing import Any
from unittest.mock import patch

from twisted.internet.defer import Deferred
from twisted.internet.error import ConnectionDone, ConnectionRefusedError, DNSLookupError, NoRouteError
from twisted.internet.task import Clock
from twisted.internet.testing import MemoryReactorClock, StringTransport
from twisted.logger import formatEvent
from twisted.mail.smtp import SMTPDeliveryError
from twisted.python.failure import Failure
from twisted.trial.unittest import TestCase

from project_service.auth import mail as mails
from project_service.auth.mail import (
    PAUSES,
    MailFolder,
    MailServer,
    MailServerError,
    Outbox,
    message,
    why,
)
from project_service.auth.mail_templates import Mail, TemplateFault
from project_service.lifecycle import start
from project_service.settings.model import Secret, Smtp
from tests.captured_log import captured_logs
from tests.fakes.common import held
from tests.temporary import temporary_directory


class Mails(TestCase):
    def test_the_message_is_rfc_5322(self) -> None:
        mail = Mail("zoë@bücher.test", "Ein Betreff mit ü", "Zeile eins\n.\nFrom hier\n")
        raw = message(mail, "Project <noreply@example.test>", 1_795_230_245, "id-1")
        assert b"\r\n" in raw and b"\n" not in raw.replace(b"\r\n", b"")
        assert raw.isascii()
        parsed = email.message_from_bytes(raw, policy=default)
        assert parsed["Subject"] == "Ein Betreff mit ü"
        assert parsed["Message-ID"] == "<id-1@example.test>"
        assert parsed["Date"] == "Sat, 21 Nov 2026 03:04:05 -0000"
        assert parsed["Auto-Submitted"] == "auto-generated"
        assert parsed.get_content().splitlines() == ["Zeile eins", ".", "From hier"]

    def test_html_is_an_alternative_to_the_text_which_comes_first(self) -> None:
        mail = Mail("ada@example.test", "s", "Text\n", "<p>Grüße</p>\n")
        raw = message(mail, "noreply@example.test", 0, "id-1")
        self.assertEqual(raw, message(mail, "noreply@example.test", 0, "id-1"))
        assert raw.isascii()
        parsed = email.message_from_bytes(raw, policy=default)
        self.assertEqual(parsed.get_content_type(), "multipart/alternative")
        self.assertEqual(
            [(one.get_content_type(), one.get_content()) for one in parsed.iter_parts()],
            [("text/plain", "Text\r\n"), ("text/html", "<p>Grüße</p>\r\n")],
        )

    def test_lines_that_smtp_does_not_carry_are_encoded(self) -> None:
        long = "x" * 999
        raw = message(Mail("ada@example.test", "s", long, f"<p>{long}</p>"), "noreply@example.test", 0, "id")
        assert all(len(line) <= 998 for line in raw.splitlines())
        parsed = email.message_from_bytes(raw, policy=default)
        self.assertEqual([one.get_content().strip() for one in parsed.iter_parts()], [long, f"<p>{long}</p>"])

    def test_domains_are_sent_in_ascii_and_display_names_unencoded_in_addresses(self) -> None:
        """RFC 2047 section 5 forbids an encoded word within an address."""
        mail = Mail("ada@bücher.test", "s", "t")
        for sender, named in (
            ('"Büro, München" <noreply@bücher.test>', "Büro, München"),
            ("Project <noreply@bücher.test>", "Project"),
            ("noreply@bücher.test", ""),
        ):
            raw = message(mail, sender, 0, "id")
            head = dict(line.split(b": ", 1) for line in raw.partition(b"\r\n\r\n")[0].split(b"\r\n"))
            assert head[b"To"] == b"ada@xn--bcher-kva.test"
            assert head[b"From"].split(b" ")[-1].strip(b"<>") == b"noreply@xn--bcher-kva.test"
            (sender_,) = email.message_from_bytes(raw, policy=default)["From"].addresses
            assert (sender_.display_name, sender_.addr_spec) == (named, "noreply@xn--bcher-kva.test")

    def test_an_ascii_mail_is_sent_unencoded_and_others_arrive_unchanged(self) -> None:
        link, more = "https://x.test/a?token=TOKEN", "Grüße"
        for text, plain in ((link, True), (f"{link}\n{more}", False)):
            raw = message(Mail("ada@example.test", "s", text), "noreply@example.test", 0, "id")
            assert (raw.isascii(), link.encode() in raw) == (True, plain)
            assert email.message_from_bytes(raw, policy=default).get_content().split() == text.split()

    def test_line_breaks_in_header_fields_are_refused(self) -> None:
        for field in ("recipient", "subject"):
            parts = {"recipient": "ada@example.test", "subject": "Hello", "text": "x"}
            parts[field] += "\r\nBcc: everyone@example.test"
            with self.assertRaises(ValueError):
                message(Mail(**parts), "noreply@example.test", 0, "id")

    def test_a_folder_has_mails_by_time_that_only_the_service_can_read(self) -> None:
        folder = temporary_directory(self) / "mail"
        now = 1_795_230_245.5
        outbox = MailFolder(None, folder, None, lambda: now)
        for text, seconds in (("second", 60), ("first", 0), ("third", 60.25)):
            now = 1_795_230_245.5 + seconds
            outbox.write(Mail("ada@bücher.test", "Grüße", text))
        names = sorted(one.name for one in folder.iterdir())
        self.assertEqual(
            [name.rpartition("-")[0] for name in names],
            ["20261121T030405.500000Z", "20261121T030505.500000Z", "20261121T030505.750000Z"],
        )
        mails = [email.message_from_bytes((folder / name).read_bytes(), policy=default) for name in names]
        self.assertEqual([mail.get_content().strip() for mail in mails], ["first", "second", "third"])
        for name, mail in zip(names, mails, strict=True):
            assert mail["From"] and mail["Date"] and mail["Message-ID"], mail
            self.assertEqual((mail["To"], mail["Subject"]), ("ada@xn--bcher-kva.test", "Grüße"))
            self.assertEqual((folder / name).stat().st_mode & 0o777, 0o600)
        self.assertEqual(folder.stat().st_mode & 0o777, 0o700)

    def test_a_folder_keeps_the_newest_mails_and_all_files_of_others(self) -> None:
        folder = temporary_directory(self)
        (folder / "0-mine.eml").write_text("x")
        now = 0.0
        outbox = MailFolder(None, folder, "noreply@example.test", lambda: now)
        with patch.object(mails, "MAX_STORED", 2):
            for now in (1.0, 2.0, 3.0, 4.0):  # noqa: B007  # the clock reads it
                outbox.write(Mail("ada@example.test", "s", "t"))
        names = sorted(one.name for one in folder.iterdir())
        self.assertEqual([name[:15] for name in names], ["0-mine.eml", "19700101T000003", "19700101T000004"])
        outbox.empty()
        self.assertEqual([one.name for one in folder.iterdir()], ["0-mine.eml"])

    def test_a_folder_is_checked_and_not_made(self) -> None:
        folder = temporary_directory(self)
        MailFolder(None, folder / "not" / "yet", None).check()
        MailFolder(None, folder / "not", None).empty()
        self.assertEqual(list(folder.iterdir()), [])
        (folder / "file").write_text("")
        with self.assertRaises(NotADirectoryError) as raised:
            MailFolder(None, folder / "file" / "mail", None).check()
        self.assertEqual(why(raised.exception), f"Not a directory: {folder / 'file'}")
        with patch("os.access", lambda path, mode: False), self.assertRaises(PermissionError):
            MailFolder(None, folder, None).check()

    def test_the_log_says_why_a_folder_cannot_be_written(self) -> None:
        file = temporary_directory(self) / "mail"
        file.write_text("not a folder")
        with self.assertRaises(OSError) as raised:
            MailFolder(None, file, None).write(Mail("ada@example.test", "s", "TOKEN"))
        self.assertEqual(why(raised.exception), f"File exists: {file}")

    def test_a_mail_that_fails_is_tried_again_for_half_an_hour(self) -> None:
        clock, tried = Clock(), []
        faults: list[Any] = [OSError] * 3 + [SMTPDeliveryError, ConnectionRefusedError]

        async def refuse(mail: Mail) -> None:
            tried.append(mail)
            raise faults.pop()(450, f"no {mail.recipient} here")

        outbox = Outbox(refuse, clock)
        mail = Mail("ada@example.test", "s", "t")
        with captured_logs() as events:
            outbox.send_later(lambda: mail)
            assert tried == []
            clock.advance(0)
            assert len(tried) == 1
            clock.advance(5)
            assert len(tried) == 2
            for tries, pause in enumerate((60, 300, 1500), 3):
                clock.advance(pause - 1)
                assert len(tried) == tries - 1
                clock.advance(1)
                assert len(tried) == tries
        assert tried == [mail] * 5
        # The log says why, but names neither the recipient nor the server's words.
        assert [formatEvent(event) for event in events] == [
            "an e-mail was not accepted: the mail server cannot be reached: connection refused",
            "an e-mail was not accepted: the mail server refuses (450)",
            *["an e-mail was not accepted: OSError"] * 3,
            "an e-mail was given up",
        ]
        assert clock.getDelayedCalls() == []

    def test_a_mail_that_is_refused_for_good_is_not_tried_again(self) -> None:
        for code, retried in ((499, True), (500, False), (599, False)):

            async def refuse(mail: Mail, code: int = code) -> None:
                raise SMTPDeliveryError(code, b"no such user")

            clock = Clock()
            with captured_logs() as events:
                Outbox(refuse, clock).send_later(lambda: Mail("ada@example.test", "s", "t"))
                clock.advance(0)
            assert bool(clock.getDelayedCalls()) is retried
            assert (formatEvent(events[-1]) == "an e-mail was given up") is not retried

    def test_a_mail_that_cannot_be_composed_is_tried_again_and_does_not_block_others(self) -> None:
        sent: list[Mail] = []
        mail = Mail("ada@example.test", "s", "t")
        faults = [OSError("too many open files")]

        async def take(mail: Mail) -> None:
            sent.append(mail)

        def write() -> Mail:
            if faults:
                raise faults.pop()
            return mail

        clock = Clock()
        outbox = Outbox(take, clock)
        outbox.send_later(write)
        clock.advance(0)
        assert sent == []
        outbox.send_later(lambda: mail)
        clock.advance(0)
        assert len(sent) == 1
        clock.advance(5)
        assert len(sent) == 2

    def test_a_mail_whose_template_fails_is_not_tried_again(self) -> None:
        fault = TemplateFault("/mails/de/recovery.txt:4", "'TOKEN' is undefined")

        def write() -> Mail:
            raise fault

        async def take(mail: Mail) -> None:
            self.fail("half a mail was sent")

        clock = Clock()
        with captured_logs() as events:
            Outbox(take, clock).send_later(write)
            clock.advance(0)
        self.assertEqual(
            [formatEvent(event) for event in events],
            [
                "an e-mail was not accepted: its template fails: /mails/de/recovery.txt:4",
                "an e-mail was given up",
            ],
        )
        self.assertEqual(clock.getDelayedCalls(), [])

    def test_failing_mails_do_not_block_others(self) -> None:
        """Anybody can have mails sent to any number of addresses that the mail server refuses."""
        sent: list[str] = []

        async def take(mail: Mail) -> None:
            if mail.recipient.startswith("nobody"):
                raise SMTPDeliveryError(450, b"no such user")
            sent.append(mail.recipient)

        clock = Clock()
        outbox = Outbox(take, clock)
        for name in (*["nobody"] * 20, "ada"):
            outbox.send_later(partial(Mail, f"{name}@example.test", "s", "t"))
        with captured_logs():
            clock.advance(0)
            assert sent == ["ada@example.test"]
            clock.pump(PAUSES)
        assert clock.getDelayedCalls() == []

    def test_mails_between_two_tries_leave_the_queue_to_others_up_to_a_thousand(self) -> None:
        sent: list[Mail] = []
        faults = [OSError()] * 1001

        async def take(mail: Mail) -> None:
            if faults:
                raise faults.pop()
            sent.append(mail)

        clock = Clock()
        outbox = Outbox(take, clock)
        with captured_logs() as events:
            for _ in range(1000):
                outbox.send_later(lambda: Mail("ada@example.test", "s", "t"))
            clock.advance(0)
            outbox.send_later(lambda: Mail("bob@example.test", "s", "t"))
            outbox.send_later(lambda: Mail("eve@example.test", "s", "t"))
            clock.advance(0)
        # One more failing mail is not tried again, since the number of mails that pause is bounded.
        assert [mail.recipient for mail in sent] == ["eve@example.test"]
        assert formatEvent(events[-1]) == "an e-mail was given up"
        clock.advance(5)
        assert [mail.recipient for mail in sent[1:]] == ["ada@example.test"] * 1000

    def test_a_thousand_mails_may_wait_and_another_is_dropped_and_logged(self) -> None:
        sent: list[Mail] = []

        async def take(mail: Mail) -> None:
            sent.append(mail)

        clock = Clock()
        outbox = Outbox(take, clock)
        with captured_logs() as events:
            for _ in range(1001):
                outbox.send_later(lambda: Mail("ada@example.test", "s", "t"))
        assert [formatEvent(event) for event in events] == ["too many e-mails are waiting; one was dropped"]
        clock.advance(0)
        assert len(sent) == 1000

    def test_at_most_four_mails_are_sent_at_a_time(self) -> None:
        open_: list[Deferred[None]] = []

        async def slow(mail: Mail) -> None:
            await held(open_)

        clock = Clock()
        outbox = Outbox(slow, clock)
        for _ in range(10):
            outbox.send_later(lambda: Mail("ada@example.test", "s", "t"))
        clock.advance(0)
        assert len(open_) == 4
        open_[0].callback(None)
        assert len(open_) == 5
        while any(not one.called for one in open_):
            next(one for one in open_ if not one.called).callback(None)
        assert len(open_) == 10
        for _ in range(10):
            outbox.send_later(lambda: Mail("ada@example.test", "s", "t"))
        clock.advance(0)
        assert len(open_) == 14


SETTINGS = Smtp(
    host="mail.example.test",
    sender="noreply@example.test",
    username="mailer",
    password=Secret("hush"),
    tls="none",
)
ENHANCED = (b"220 here", b"250-here\r\n250 AUTH PLAIN")


class Conversations(TestCase):
    def setUp(self) -> None:
        self.reactor: Any = MemoryReactorClock()
        self.transport = StringTransport()

    def reach(self) -> Deferred[None]:
        return start(MailServer(self.reactor, SETTINGS).reach())

    def connected(self, *lines: bytes) -> Any:
        """The client's connection, after the server has sent these lines."""
        client = self.reactor.tcpClients[0][2].buildProtocol(None)
        client.makeConnection(self.transport)
        # Twisted's own timer for an answer, which runs on the real reactor, ends with the connection.
        self.addCleanup(client.connectionLost, Failure(ConnectionDone()))
        for line in lines:
            client.dataReceived(line + b"\r\n")
        return client

    def why_not(self, reached: Deferred[None]) -> str:
        return str(self.failureResultOf(reached, MailServerError).value)

    def test_it_logs_in_and_quits_without_sending_mail(self) -> None:
        reached = self.reach()
        client = self.connected(*ENHANCED, b"235 welcome")
        self.assertNoResult(reached)
        self.assertTrue(self.transport.value().endswith(b"\r\nQUIT\r\n"))
        self.assertNotIn(b"MAIL", self.transport.value())
        client.dataReceived(b"221 bye\r\n")
        self.successResultOf(reached)
        self.assertTrue(self.transport.disconnecting)
        # Twisted would log two lines for each mail otherwise.
        self.assertFalse(self.reactor.tcpClients[0][2].noisy)

    def test_starttls_is_not_used_if_tls_is_none_even_if_offered(self) -> None:
        """A relay on the same machine may offer it with a certificate that nobody trusts."""
        reached = self.reach()
        offering = b"250-here\r\n250-STARTTLS\r\n250 AUTH PLAIN"
        self.connected(b"220 here", offering, b"235 welcome", b"221 bye")
        self.assertNotIn(b"STARTTLS", self.transport.value())
        self.successResultOf(reached)

    def test_the_reply_to_quit_does_not_matter(self) -> None:
        for ending in (b"500 what?", b"nonsense"):
            self.setUp()
            reached = self.reach()
            self.connected(*ENHANCED, b"235 welcome", ending)
            self.successResultOf(reached)
        self.setUp()
        reached = self.reach()
        self.connected(*ENHANCED, b"235 welcome").connectionLost(Failure(ConnectionDone()))
        self.successResultOf(reached)

    def test_a_refusal_is_reported_by_its_code_without_the_servers_words(self) -> None:
        reasons = {
            (b"554 hush, go away",): "refuses (554)",
            (b"220 here", b"502 hush"): "does not know EHLO",
            (*ENHANCED, b"334 ", b"535 hush"): "refuses the user name or the password (535)",
            (b"SSH-2.0-hush",): "what answers is not a mail server",
        }
        for lines, words in reasons.items():
            self.setUp()
            reached = self.reach()
            self.connected(*lines)
            why = self.why_not(reached)
            self.assertIn(words, why)
            self.assertNotIn("hush", why)

    def test_a_silent_server_times_out(self) -> None:
        reached = self.reach()
        client = self.connected(b"220-slow")
        for _ in range(29):
            self.reactor.advance(1)
        self.assertNoResult(reached)
        with patch.object(self.reactor.connectors[0], "disconnect") as left:
            self.reactor.advance(1)
        left.assert_called_once_with()
        self.assertIn("does not answer in time", self.why_not(reached))
        # It is no error either if such a connection does not end by itself.
        client.timeoutConnection()
        self.assertTrue(self.transport.disconnected)

    def test_single_lines_do_not_extend_the_timeout(self) -> None:
        reached = self.reach()
        client = self.connected()
        for _ in range(3):
            client.dataReceived(b"220-slow\r\n")
            self.reactor.advance(10)
        self.assertIn("does not answer in time", self.why_not(reached))

    def test_an_unreachable_host_is_reported_without_its_address(self) -> None:
        for fault, words in (
            (DNSLookupError("hush"), "smtp.host has no address"),
            (NoRouteError("hush"), "cannot be reached: NoRouteError"),
        ):
            self.setUp()
            reached = self.reach()
            self.reactor.tcpClients[0][2].clientConnectionFailed(None, Failure(fault))
            why = self.why_not(reached)
            self.assertIn(words, why)
            self.assertNotIn("hush", why)
