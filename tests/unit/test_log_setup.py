"""Where the log goes: twistd's options are respected, SIGUSR1 reopens the file, and a full disk stops nothing."""

from __future__ import annotations

import io
import os
import signal
import sys
from pathlib import Path
from shutil import rmtree
from tempfile import TemporaryDirectory
from typing import Any

from twisted.internet import reactor
from twisted.internet.task import Clock
from twisted.logger import Logger, LogPublisher, formatEvent
from twisted.python.reflect import namedAny
from twisted.trial.unittest import TestCase

from project_service.log import setup as log_setup
from project_service.log.setup import install, set_level, write_lines
from tests.said import captured_logs


class Case(TestCase):
    def setUp(self) -> None:
        self.patch(log_setup, "_log", log_setup._Log())
        self.patch(reactor, "callLater", Clock().callLater)
        self.patch(reactor, "callFromThread", lambda work: work())
        self.addCleanup(signal.signal, signal.SIGUSR1, signal.getsignal(signal.SIGUSR1))
        folder = TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.file = Path(folder.name) / "log"

    def log(self, **options: Any) -> Logger:
        """The log that twistd sets up with these options."""
        install(options, "text", "warn")
        return Logger(namespace="there", observer=LogPublisher(namedAny(options["logger"])()))


class Chosen(Case):
    def test_an_observer_of_the_operators_own_is_left_alone_and_gets_the_workers_lines(self) -> None:
        for own in ({"logger": "their.observer"}, {"syslog": True}):
            options: dict[str, Any] = dict(own)
            install(options, "text", "info")
            self.assertEqual(options, {**own, "no_save": True})
        with captured_logs() as events:
            write_lines(["of a worker"])
        self.assertEqual([formatEvent(event) for event in events], ["of a worker"])

    def test_in_the_foreground_it_is_the_output(self) -> None:
        out = io.StringIO()
        self.patch(sys, "__stdout__", out)
        for name in (None, "", "-"):
            self.log(nodaemon=True, logfile=name).warn("said")
        self.assertEqual(out.getvalue().count("said"), 3)

    def test_an_output_that_nobody_reads_loses_lines_and_nothing_else(self) -> None:
        reader, writer = os.pipe()
        os.close(reader)
        out = os.fdopen(writer, "w")
        self.patch(sys, "__stdout__", out)
        self.log(nodaemon=True).warn("lost")
        write_lines(["lost"])
        out.close()

    def test_an_output_in_another_encoding_loses_no_line(self) -> None:
        raw = io.BytesIO()
        self.patch(sys, "__stdout__", io.TextIOWrapper(raw, "latin-1"))
        log = self.log(nodaemon=True)
        log.warn("Zürich: 5 \N{EURO SIGN}")
        write_lines(["5 \N{EURO SIGN}", "and more"])
        said = raw.getvalue().decode("latin-1").splitlines()
        self.assertEqual(
            [line.rpartition("] ")[2] for line in said], [r"Zürich: 5 \u20ac", r"5 \u20ac", "and more"]
        )

    def test_unless_a_file_is_named(self) -> None:
        self.log(nodaemon=True, logfile=str(self.file)).warn("said")
        self.assertIn("[there] said", self.file.read_text())


class File(Case):
    def test_opened_anew_on_sigusr1(self) -> None:
        log = self.log(logfile=str(self.file))
        log.info("too quiet")
        log.warn("one")
        moved = self.file.rename(self.file.with_suffix(".1"))
        os.kill(os.getpid(), signal.SIGUSR1)
        set_level("info")
        log.info("two")
        write_lines(["of a worker", "of another"])
        self.assertEqual([line.split("] ")[1] for line in moved.read_text().splitlines()], ["one"])
        lines = self.file.read_text().splitlines()
        self.assertEqual((lines[0].split("] ")[1], lines[1:]), ("two", ["of a worker", "of another"]))

    def test_emptied_in_place(self) -> None:
        """As by logrotate's copytruncate, or by hand where the disk is full."""
        log = self.log(logfile=str(self.file))
        for reopened in (False, True):
            log.warn("one")
            os.truncate(self.file, 0)
            log.warn("two")
            self.assertEqual(self.file.read_text().rpartition("] ")[2], "two\n", reopened)
            self.assertEqual(self.file.read_bytes().count(b"\0"), 0, reopened)
            os.kill(os.getpid(), signal.SIGUSR1)

    def test_a_handler_that_is_there_already_stays(self) -> None:
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        self.log(logfile=str(self.file))
        self.assertEqual(signal.getsignal(signal.SIGUSR1), signal.SIG_IGN)

    def test_one_that_cannot_be_opened_anew_stays_until_it_can(self) -> None:
        log = self.log(logfile=str(self.file))
        self.file.chmod(0o640)
        moved = self.file.parent.rename(self.file.parent.with_suffix(".1"))
        self.addCleanup(rmtree, moved)
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGUSR1)
        write_lines(["of a worker"])
        log.warn("one")
        self.assertEqual((moved / "log").read_text().count("of a worker\n"), 1)
        self.file.parent.mkdir()
        os.kill(os.getpid(), signal.SIGUSR1)
        log.warn("two")
        self.assertTrue((moved / "log").read_text().endswith("one\n"))
        self.assertTrue(self.file.read_text().endswith("two\n"))

    def test_what_is_no_text_loses_itself_and_nothing_else(self) -> None:
        log = self.log(logfile=str(self.file))
        write_lines(["\udcff"])
        log.warn("one")
        self.assertTrue(self.file.read_text().endswith("one\n"))

    def test_a_full_disk_loses_lines_and_nothing_else(self) -> None:
        self.log(logfile="/dev/full").warn("lost")
        write_lines(["lost"])
