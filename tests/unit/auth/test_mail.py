"""How mails are sent: the outbox, and the folder in place of a mail server."""

from __future__ import annotations

import email
from email.policy import default
from functools import partial
from typing import Any
from unittest.mock import patch

from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.logger import formatEvent
from twisted.trial.unittest import TestCase

from project_service.auth import mail as mails
from project_service.auth.mail import PAUSES, MailFolder, Outbox, why
from project_service.auth.mail_server import MailServerError
from project_service.auth.mail_templates import Mail, TemplateFault
from tests.captured_log import captured_logs
from tests.fakes.common import held
from tests.temporary import temporary_directory

TOKEN = "x" * 43


class Mails(TestCase):
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
        refused = "the mail server refuses the recipient (450 4.2.0 Greylisted)"
        faults: list[Any] = [OSError(450, f"no {TOKEN} here")] * 4 + [MailServerError(refused)]

        async def refuse(mail: Mail) -> None:
            tried.append(mail)
            raise faults.pop()

        outbox, outcomes = Outbox(refuse, clock), list[str]()
        outbox.observe = outcomes.append
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
        assert outcomes == [*["refused"] * 4, "given_up"]
        # The text of any other fault may have something of the mail.
        assert [formatEvent(event) for event in events] == [
            f"an e-mail was not accepted: {refused}",
            *["an e-mail was not accepted: OSError"] * 4,
            "an e-mail was given up",
        ]
        assert clock.getDelayedCalls() == []

    def test_a_mail_that_is_refused_for_good_is_not_tried_again(self) -> None:
        for retried in (True, False):

            async def refuse(mail: Mail, is_final: bool = not retried) -> None:
                raise MailServerError("no such user", is_final)

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
        outbox, outcomes = Outbox(take, clock), list[str]()
        outbox.observe = outcomes.append
        outbox.send_later(write)
        clock.advance(0)
        assert sent == []
        outbox.send_later(lambda: mail)
        clock.advance(0)
        assert len(sent) == 1
        clock.advance(5)
        assert len(sent) == 2
        assert outcomes == ["refused", "sent", "sent"]

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
                raise MailServerError("the mail server refuses the recipient (450)")
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
