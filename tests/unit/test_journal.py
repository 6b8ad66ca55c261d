"""Log lines: one for each event in either format, complete access lines, no secrets, and a level that can be
changed."""

from __future__ import annotations

import io
import json
from typing import Any

from twisted.internet.task import Clock
from twisted.logger import Logger, LogLevel, LogPublisher
from twisted.trial.unittest import TestCase

from project_service.log.journal import BATCH_SECONDS, Batched, Levels, RequestIds, access_event, observer

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


def answered(log: Logger) -> None:
    access_event(log, "abc", "GET", "/x/psk_anon_0123456789abcdef", 200, 5, 1.23452, "192.0.2.1")


class Lines(TestCase):
    def log(self, log_format: str, level: str = "info") -> tuple[Logger, io.StringIO, Levels]:
        out, levels = io.StringIO(), Levels(level)
        publisher = LogPublisher(observer(out, log_format, levels))
        return Logger(namespace="there", observer=publisher), out, levels

    def test_an_access_line_as_text(self) -> None:
        log, out, _ = self.log("text")
        answered(log)
        self.assertRegex(
            out.getvalue(),
            r"\A\d{4}-\d\d-\d\dT[\d:.]{12}Z info     \[there\] GET /x/\*\*\* 200 5B 1234.5ms id=abc\n\Z",
        )

    def test_an_access_line_as_json(self) -> None:
        log, out, _ = self.log("json")
        answered(log)
        record = json.loads(out.getvalue())
        self.assertEqual(record["message"], "GET /x/*** 200 5B 1234.5ms id=abc")
        self.assertEqual({name: record[name] for name in FIELDS}, FIELDS)
        self.assertEqual((record["level"], record["logger"]), ("info", "there"))
        self.assertEqual(set(record), {"time", "level", "logger", "message", *FIELDS})

    def test_times_are_cut_to_milliseconds_not_rounded_up(self) -> None:
        for seconds, said in ((1.5, "01.500Z"), (2.0, "02.000Z"), (3.0019, "03.001Z"), (4.9999, "04.999Z")):
            out = io.StringIO()
            event: dict[str, Any] = {
                "log_time": seconds,
                "log_level": LogLevel.info,
                "log_namespace": "there",
            }
            observer(out, "json", Levels("info"))(event)
            self.assertEqual(json.loads(out.getvalue())["time"], f"1970-01-01T00:00:{said}")

    def test_values_keep_their_json_types(self) -> None:
        log, out, _ = self.log("json")
        log.info("it", one=1, half=0.5, yes=True, none=None, other=["psk_anon_0123456789abcdef"])
        record = json.loads(out.getvalue())
        said = {name: record[name] for name in ("one", "half", "yes", "none", "other")}
        self.assertEqual(said, {"one": 1, "half": 0.5, "yes": True, "none": None, "other": "['***']"})

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

    def test_connections_to_the_store_are_not_logged_below_warnings(self) -> None:
        out, levels = io.StringIO(), Levels("info")
        log = Logger(namespace="twisted.web.client", observer=LogPublisher(observer(out, "text", levels)))
        for level in ("info", "debug"):
            levels.set_default(level)
            log.info("one of many")
            log.warn("a fault")
        self.assertEqual(out.getvalue().count("one of many"), 0)
        self.assertEqual(out.getvalue().count("a fault"), 2)


class Batches(TestCase):
    def test_access_lines_are_batched_and_other_lines_are_not(self) -> None:
        out, clock = io.StringIO(), Clock()
        batched: Any = Batched(out, clock.callLater)
        log = Logger(namespace="there", observer=LogPublisher(observer(batched, "text", Levels("info"))))
        answered(log)
        answered(log)
        self.assertEqual((out.getvalue(), len(clock.getDelayedCalls())), ("", 1))
        clock.advance(BATCH_SECONDS)
        self.assertEqual(out.getvalue().count("\n"), 2)
        answered(log)
        log.warn("now")
        self.assertEqual(
            [line.split("] ")[1][:3] for line in out.getvalue().splitlines()[2:]], ["GET", "now"]
        )
        clock.advance(BATCH_SECONDS)
        self.assertEqual((out.getvalue().count("\n"), clock.getDelayedCalls()), (4, []))


class Ids(TestCase):
    def test_request_ids_are_unique(self) -> None:
        made, other = RequestIds(lambda count: b"\1" * count), RequestIds(lambda count: b"\2" * count)
        ids = [made(), made(), other()]
        self.assertEqual(len(set(ids)), 3)
        for found in ids:
            self.assertRegex(found, r"\A[0-9a-f]{32}\Z")
