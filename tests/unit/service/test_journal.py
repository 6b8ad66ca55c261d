"""Log lines: one for each event in either format, complete access lines, no secrets, and a level that can be
changed."""

from __future__ import annotations

import io
import json
import time
from typing import Any, cast

from twisted.internet.task import Clock
from twisted.logger import Logger, LogLevel, LogPublisher, formatEvent
from twisted.trial.unittest import TestCase

from project_service.log import BATCH_SECONDS, AccessLog, Levels, RequestIds, Requests, observer

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
