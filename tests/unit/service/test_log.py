"""The log: lines without secrets in either format, where they go, and an output that nobody reads."""

from __future__ import annotations

import io
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from shutil import rmtree
from tempfile import TemporaryDirectory
from time import monotonic
from typing import Any, cast

from twisted.internet import reactor
from twisted.internet.task import Clock
from twisted.logger import Logger, LogLevel, LogPublisher, formatEvent
from twisted.python.reflect import namedAny
from twisted.trial.unittest import TestCase

from project_service import log
from project_service.log import (
    BATCH_SECONDS,
    AccessLog,
    Levels,
    Output,
    RequestIds,
    Requests,
    install,
    observer,
    set_level,
    write_lines,
)
from tests.captured_log import captured_logs

# Of a request whose path was /x/psk_anon_0123456789abcdef.
FIELDS: dict[str, object] = {
    "request_id": "abc",
    "method": "GET",
    "path": "/x/***",
    "status": 200,
    "bytes": 5,
    "ms": 1234.5,
    "client": "192.0.2.1",
}


def answered(access: AccessLog, request_id: str = "abc") -> None:
    access.append(request_id, "GET", "/x/psk_anon_0123456789abcdef", 200, 5, 1.23452, "192.0.2.1")


class Lines(TestCase):
    def log(self, log_format: str, level: str = "info") -> tuple[Logger, io.StringIO, Levels]:
        out, levels = io.StringIO(), Levels(level)
        publisher = LogPublisher(observer(out, log_format, levels))
        return Logger(namespace="there", observer=publisher), out, levels

    def test_an_access_line_as_text(self) -> None:
        log, out, _ = self.log("text")
        answered(AccessLog(log, None))
        self.assertRegex(
            out.getvalue(),
            r"\A\d{4}-\d\d-\d\dT[\d:.]{12}Z info     \[there\] GET /x/\*\*\* 200 5B 1234.5ms id=abc\n\Z",
        )

    def test_an_access_line_as_json(self) -> None:
        log, out, _ = self.log("json")
        answered(AccessLog(log, None))
        record = json.loads(out.getvalue())
        self.assertEqual(record["message"], "GET /x/*** 200 5B 1234.5ms id=abc")
        self.assertEqual({name: record[name] for name in FIELDS}, FIELDS)
        self.assertEqual((record["level"], record["logger"]), ("info", "there"))
        self.assertEqual(set(record), {"time", "level", "logger", "message", *FIELDS})

    def test_times_are_cut_to_milliseconds_not_rounded_up(self) -> None:
        for seconds, shown in ((1.5, "01.500Z"), (2.0, "02.000Z"), (3.0019, "03.001Z"), (4.9999, "04.999Z")):
            out = io.StringIO()
            event: dict[str, Any] = {
                "log_time": seconds,
                "log_level": LogLevel.info,
                "log_namespace": "there",
            }
            observer(out, "json", Levels("info"))(event)
            self.assertEqual(json.loads(out.getvalue())["time"], f"1970-01-01T00:00:{shown}")

    def test_values_keep_their_json_types(self) -> None:
        log, out, _ = self.log("json")
        log.info("it", one=1, half=0.5, yes=True, none=None, other=["psk_anon_0123456789abcdef"])
        record = json.loads(out.getvalue())
        shown = {name: record[name] for name in ("one", "half", "yes", "none", "other")}
        self.assertEqual(shown, {"one": 1, "half": 0.5, "yes": True, "none": None, "other": "['***']"})

    def test_a_failure_keeps_its_traceback_on_one_json_line(self) -> None:
        for log_format in ("text", "json"):
            log, out, _ = self.log(log_format)
            try:
                raise ValueError("postgresql://u:hunter2@h/db")
            except ValueError:
                log.failure("it broke {what}", what="here")
            self.assertIn("ValueError", out.getvalue())
            self.assertNotIn("hunter2", out.getvalue())
            if log_format == "json":
                self.assertEqual(json.loads(out.getvalue())["message"], "it broke here")

    def test_a_line_break_in_a_value_cannot_forge_a_second_event(self) -> None:
        log, out, _ = self.log("text")
        log.info("{value}", value="a\n2026-01-01T00:00:00.000Z info     [there] forged")
        self.assertTrue(out.getvalue().endswith("a\n\t2026-01-01T00:00:00.000Z info     [there] forged\n"))

    def test_control_characters_are_escaped(self) -> None:
        log, out, _ = self.log("text")
        log.info("{value}", value="a\x1b[2J\r\x07\x9b1m\x00\u2028\x85é\tb")
        self.assertIn(r"a\x1b[2J\r\x07\x9b1m\x00\u2028\x85é" + "\tb\n", out.getvalue())

    def test_the_level_can_change(self) -> None:
        log, out, levels = self.log("text", "warn")
        log.info("one")
        levels.set_default("info")
        log.info("two")
        self.assertNotIn("one", out.getvalue())
        self.assertIn("two", out.getvalue())

    def test_twisteds_own_notices_are_not_logged_below_warnings(self) -> None:
        for namespace in (
            "twisted.web.client._HTTP11ClientFactory",
            "twisted.scripts._twistd_unix.UnixAppLogger",
            "twisted.internet.base",
            "twisted.internet.protocol.Factory",
            "log_legacy",
        ):
            out, levels = io.StringIO(), Levels("info")
            log = Logger(namespace=namespace, observer=LogPublisher(observer(out, "text", levels)))
            for level in ("info", "debug"):
                levels.set_default(level)
                log.info("one of many")
                log.warn("a fault")
            self.assertEqual(out.getvalue().count("one of many"), 0)
            self.assertEqual(out.getvalue().count("a fault"), 2)


class Batches(TestCase):
    """Requests are gathered and logged as one event, with a line for each."""

    def setUp(self) -> None:
        self.clock, self.events = Clock(), list[dict[str, Any]]()
        self.outputs = {name: io.StringIO() for name in ("text", "json")}
        writers = [observer(out, name, Levels("info")) for name, out in self.outputs.items()]
        publisher = LogPublisher(cast(Any, self.events.append), *writers)
        self.access = AccessLog(Logger(namespace="there", observer=publisher), self.clock.callLater)

    def lines(self, log_format: str) -> list[str]:
        return self.outputs[log_format].getvalue().splitlines()

    def test_what_came_within_a_moment_is_one_event(self) -> None:
        for number in range(3):
            answered(self.access, str(number))
        self.assertEqual((self.events, len(self.clock.getDelayedCalls())), ([], 1))
        self.clock.advance(BATCH_SECONDS)
        self.assertEqual(len(self.events), 1)
        self.assertEqual([line.rpartition("id=")[2] for line in self.lines("text")], ["0", "1", "2"])
        self.assertEqual([json.loads(line)["request_id"] for line in self.lines("json")], ["0", "1", "2"])
        answered(self.access, "3")
        self.clock.advance(BATCH_SECONDS)
        self.assertEqual((len(self.events), self.clock.getDelayedCalls()), (2, []))
        self.assertEqual(len(self.lines("text")), 4)

    def test_each_line_is_complete_and_has_the_time_of_its_own_request(self) -> None:
        times = iter((1.5, 62.25))
        self.patch(time, "time", lambda: next(times))
        answered(self.access, "a")
        answered(self.access, "b")
        self.patch(time, "time", lambda: 100.0)
        self.access.flush()
        shown = [
            f"1970-01-01T00:0{at}Z info     [there] GET /x/*** 200 5B 1234.5ms id={one}"
            for at, one in (("0:01.500", "a"), ("1:02.250", "b"))
        ]
        self.assertEqual(self.lines("text"), shown)
        for line, at in zip(self.lines("json"), ("0:01.500", "1:02.250"), strict=True):
            record = json.loads(line)
            self.assertEqual(record["time"], f"1970-01-01T00:0{at}Z")
            self.assertEqual(set(record), {"time", "level", "logger", "message", *FIELDS})

    def test_flushing_logs_at_once_and_nothing_twice(self) -> None:
        answered(self.access)
        self.access.flush()
        self.access.flush()
        self.assertEqual(len(self.lines("text")), 1)
        self.clock.advance(BATCH_SECONDS)
        self.assertEqual(len(self.events), 1)

    def test_what_comes_between_a_flush_and_its_time_is_not_lost(self) -> None:
        answered(self.access, "a")
        self.access.flush()
        answered(self.access, "b")
        self.clock.advance(BATCH_SECONDS)
        self.assertEqual([line.rpartition("id=")[2] for line in self.lines("text")], ["a", "b"])

    def test_other_observers_get_a_line_for_each_without_secrets(self) -> None:
        answered(self.access, "a")
        answered(self.access, "b")
        self.access.flush()
        (event,) = self.events
        self.assertIsInstance(event["access"], Requests)
        shown = "GET /x/*** 200 5B 1234.5ms id="
        self.assertEqual(formatEvent(event), f"{shown}a\n{shown}b")

    def test_below_its_level_nothing_is_written(self) -> None:
        out = io.StringIO()
        access = AccessLog(Logger(observer=LogPublisher(observer(out, "json", Levels("warn")))), None)
        answered(access)
        self.assertEqual(out.getvalue(), "")

    def test_a_token_in_a_path_is_hidden(self) -> None:
        self.access.append("a", "GET", "/x?token=secret", 200, 0, 0.0, "192.0.2.1")
        self.access.flush()
        self.assertNotIn("secret", "".join(self.lines("text") + self.lines("json")))


class Ids(TestCase):
    def test_request_ids_are_unique(self) -> None:
        made, other = RequestIds(lambda count: b"\1" * count), RequestIds(lambda count: b"\2" * count)
        ids = [made(), made(), other()]
        self.assertEqual(len(set(ids)), 3)
        for found in ids:
            self.assertRegex(found, r"\A[0-9a-f]{32}\Z")


# More than a pipe holds.
MUCH = "a line of the log\n" * 10_000


class Reading(TestCase):
    def setUp(self) -> None:
        self.patch(log, "WRITE_TIMEOUT_SECONDS", 0.1)
        self.reader, writer = os.pipe()
        self.addCleanup(os.close, self.reader)
        self.end = os.fdopen(writer, "w", encoding="latin-1")
        self.addCleanup(self.end.close)
        self.lost: list[int] = []
        self.now = 0.0
        self.out = Output(self.end, self.lost.append, lambda: self.now)

    def read(self) -> str:
        """Reads all that is in the pipe."""
        os.set_blocking(self.reader, False)
        found = b""
        try:
            while piece := os.read(self.reader, 1 << 20):
                found += piece
        except BlockingIOError:
            os.set_blocking(self.reader, True)
        return found.decode("latin-1")

    def test_a_reader_gets_every_line(self) -> None:
        self.out.write("one\nZürich 5 \N{EURO SIGN}\n")
        self.out.flush()
        self.assertEqual(self.read(), "one\nZürich 5 \\u20ac\n")
        self.assertEqual(self.lost, [])

    def test_lines_are_lost_if_nobody_reads_and_their_number_is_reported(self) -> None:
        self.out.write(MUCH)
        self.out.write("and this\n")
        self.assertEqual(self.lost, [])
        self.read()
        self.out.write("again\n")
        self.assertEqual(self.read(), "\nagain\n")
        self.assertEqual(self.lost, [10_001])
        self.out.write("more\n")
        self.assertEqual((self.read(), self.lost), ("more\n", [10_001]))

    def test_it_waits_for_a_stuck_reader_only_once_in_a_while(self) -> None:
        self.assertTrue(self.waits())
        self.assertFalse(self.waits())
        self.now += log.NO_WAIT_SECONDS
        self.assertTrue(self.waits())

    def waits(self) -> bool:
        began = monotonic()
        self.out.write(MUCH)
        return monotonic() - began >= log.WRITE_TIMEOUT_SECONDS

    def test_a_slow_reader_loses_nothing(self) -> None:
        self.patch(log, "WRITE_TIMEOUT_SECONDS", 30.0)
        found: list[str] = []

        def read() -> None:
            while sum(map(len, found)) < len(MUCH):
                found.append(os.read(self.reader, 10_000).decode())

        reading = threading.Timer(0.1, read)
        reading.start()
        self.out.write(MUCH)
        reading.join()
        self.assertEqual("".join(found), MUCH)

    def test_a_stream_without_a_descriptor_is_refused(self) -> None:
        with self.assertRaises(OSError):
            Output(io.StringIO(), self.lost.append)


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
        shown = raw.getvalue().decode("latin-1").splitlines()
        self.assertEqual(
            [line.rpartition("] ")[2] for line in shown], [r"Zürich: 5 \u20ac", r"5 \u20ac", "and more"]
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
