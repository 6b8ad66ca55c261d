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

from project_service import log
from project_service.log import install, set_level, write_lines
from tests.captured_log import captured_logs


class Case(TestCase):
    def setUp(self) -> None:
        self.patch(log, "_log", log._Log())
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
    def test_the_operators_own_observer_is_kept_and_gets_the_workers_lines(self) -> None:
        for own in ({"logger": "their.observer"}, {"syslog": True}):
            options: dict[str, Any] = dict(own)
            install(options, "text", "info")
            self.assertEqual(options, {**own, "no_save": True})
        with captured_logs() as events:
            write_lines(["of a worker"])
        self.assertEqual([formatEvent(event) for event in events], ["of a worker"])

    def test_in_the_foreground_the_log_goes_to_standard_output(self) -> None:
        out = io.StringIO()
        self.patch(sys, "__stdout__", out)
        for name in (None, "", "-"):
            self.log(nodaemon=True, logfile=name).warn("said")
        self.assertEqual(out.getvalue().count("said"), 3)

    def test_an_output_nobody_reads_loses_lines_but_stops_nothing(self) -> None:
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

    def test_in_the_foreground_a_named_file_is_used(self) -> None:
        self.log(nodaemon=True, logfile=str(self.file)).warn("said")
        self.assertIn("[there] said", self.file.read_text())


class File(Case):
    def test_sigusr1_reopens_the_file(self) -> None:
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

    def test_a_truncated_file_is_continued_from_its_beginning(self) -> None:
        """logrotate's copytruncate does so, and operators on a full disk."""
        log = self.log(logfile=str(self.file))
        for reopened in (False, True):
            log.warn("one")
            os.truncate(self.file, 0)
            log.warn("two")
            self.assertEqual(self.file.read_text().rpartition("] ")[2], "two\n", reopened)
            self.assertEqual(self.file.read_bytes().count(b"\0"), 0, reopened)
            os.kill(os.getpid(), signal.SIGUSR1)

    def test_an_existing_handler_of_sigusr1_is_kept(self) -> None:
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        self.log(logfile=str(self.file))
        self.assertEqual(signal.getsignal(signal.SIGUSR1), signal.SIG_IGN)

    def test_a_file_that_cannot_be_reopened_stays_in_use_until_it_can(self) -> None:
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

    def test_a_line_that_cannot_be_encoded_loses_only_itself(self) -> None:
        log = self.log(logfile=str(self.file))
        write_lines(["\udcff"])
        log.warn("one")
        self.assertTrue(self.file.read_text().endswith("one\n"))

    def test_a_full_disk_loses_lines_but_stops_nothing(self) -> None:
        self.log(logfile="/dev/full").warn("lost")
        write_lines(["lost"])
