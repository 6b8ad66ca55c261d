"""The last lines of the log in memory: what is kept, how it is taken apart, and how one reads on."""

from __future__ import annotations

import io
import json
import sys
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.defer import succeed
from twisted.logger import Logger, LogPublisher, globalLogPublisher
from twisted.trial.unittest import TestCase

from project_service import log
from project_service.kept_log import (
    LEVELS,
    MAX_ANSWERED_CHARACTERS,
    MAX_BYTES,
    MAX_LINE_CHARACTERS,
    MAX_LINES,
    TURN_LINES,
    KeptLog,
    LogQuery,
)
from project_service.lifecycle import start
from project_service.log import AccessLog, Levels, install, observer, write_lines

WORDS = st.text(st.characters(codec="utf-8"), max_size=20)


class Case(TestCase):
    def setUp(self) -> None:
        self.out = io.StringIO()
        self.kept = KeptLog(self.out)
        self.turns = 0

    def logger(self, log_format: str = "text", namespace: str = "there") -> Logger:
        publisher = LogPublisher(observer(self.kept, log_format, Levels("debug")))
        return Logger(namespace=namespace, observer=publisher)

    async def turn(self) -> None:
        self.turns += 1
        await succeed(None)

    def answer(self, **query: Any) -> dict[str, Any]:
        # As it arrives from a worker.
        asked = LogQuery.from_json(LogQuery(**query).to_json())
        answer: dict[str, Any] = json.loads(self.successResultOf(start(self.kept.answer(asked, self.turn))))
        return answer

    def texts(self, **query: Any) -> list[str]:
        return [line["text"] for line in self.answer(**query)["lines"]]


class Lines(Case):
    def test_what_is_kept_is_what_is_written(self) -> None:
        self.logger().warn("take psk_service_0123456789abcdef")
        self.assertEqual(self.texts(), ["take ***"])
        self.assertIn("take ***\n", self.out.getvalue())

    def test_a_line_is_taken_apart_in_either_format(self) -> None:
        for log_format in ("text", "json"):
            self.kept = KeptLog()
            access = AccessLog(self.logger(log_format, "project_service.http.edge"), None)
            access.append("abc", "GET", "/x", 404, 5, 0.0125, "192.0.2.1")
            (line,) = self.answer()["lines"]
            self.assertRegex(line.pop("time"), r"20..-..-..T..:..:..\....Z\Z")
            self.assertEqual(
                line,
                {
                    "number": 0,
                    "level": "info",
                    "part": "project_service.http.edge",
                    "text": "GET /x 404 5B 12.5ms id=abc",
                    "request_id": "abc",
                },
                log_format,
            )

    def test_a_traceback_belongs_to_its_event(self) -> None:
        for log_format in ("text", "json"):
            self.kept = KeptLog()
            logger = self.logger(log_format)
            logger.info("before")
            try:
                raise ValueError("wrong")
            except ValueError:
                logger.failure("it failed")
            logger.info("behind")
            before, failed, behind = self.texts()
            self.assertEqual((before, behind), ("before", "behind"))
            self.assertTrue(failed.startswith("it failed\n"), failed)
            self.assertTrue(failed.rstrip().endswith("ValueError: wrong"), failed)

    def test_so_do_lines_that_arrive_one_by_one_from_a_worker(self) -> None:
        for line in ("2026-11-28T20:31:00.000Z error    [there] it failed", "\tTraceback", "\tValueError"):
            self.kept.write(f"{line}\n")
        self.assertEqual(self.texts(), ["it failed\nTraceback\nValueError"])

    @given(st.lists(st.one_of(WORDS, st.just('{"time": 1}'), st.just("{}"), st.just("\ud800"))))
    def test_nothing_that_is_printed_breaks_it(self, texts: list[str]) -> None:
        self.kept = KeptLog()
        printed = [text.replace("\n", " ") for text in texts]
        for text in printed:
            self.kept.write(f"{text}\n")
        answer = self.answer(limit=1000)
        self.assertLessEqual(len(answer["lines"]), len(printed))
        for line in answer["lines"]:
            self.assertIn(line["level"], LEVELS)

    def test_a_long_line_is_cut(self) -> None:
        self.logger().info("x" * (MAX_LINE_CHARACTERS + 1))
        (text,) = self.texts()
        self.assertEqual(len(text), MAX_LINE_CHARACTERS)


class Kept(Case):
    def test_the_number_of_lines_has_a_limit(self) -> None:
        for n in range(MAX_LINES + 500):
            self.kept.write(f"{n}\n")
        numbers: list[int] = []
        before = ""
        while True:
            answer = self.answer(limit=1000, before=before)
            numbers = [line["number"] for line in answer["lines"]] + numbers
            before = answer["oldest"]
            if before is None:
                break
        self.assertEqual(numbers, list(range(500, MAX_LINES + 500)))

    def test_so_has_their_memory(self) -> None:
        for width in (1, 2, 4):
            self.kept = KeptLog()
            character = {1: "x", 2: "\u0416", 4: "\U0001f600"}[width]
            for _ in range(3000):
                self.kept.write(character * 3000 + "\n")
            held = sum(sys.getsizeof(text) for _, text in self.kept._texts)
            self.assertLessEqual(held, MAX_BYTES)
            self.assertGreater(held, MAX_BYTES * 0.9)

    def test_a_text_that_is_larger_than_that_is_kept_from_its_end(self) -> None:
        self.kept.write("x" * MAX_BYTES + "\n" + "the end\n")
        self.assertEqual(self.texts()[-1], "the end")
        self.assertLess(sum(sys.getsizeof(text) for _, text in self.kept._texts), MAX_BYTES)
        self.assertEqual(self.answer()["lines"][-1]["number"], 1)

    def test_an_answer_ends_after_so_many_characters(self) -> None:
        for _ in range(100):
            self.kept.write("x" * 10_000 + "\n")
        answer = self.answer(limit=1000)
        self.assertLess(sum(len(line["text"]) for line in answer["lines"]), MAX_ANSWERED_CHARACTERS + 10_001)
        self.assertIsNotNone(answer["oldest"])

    def test_the_reactor_does_something_else_in_between(self) -> None:
        for n in range(10 * TURN_LINES):
            self.kept.write(f"{n}\n")
        self.texts(text="nothing has this")
        self.assertEqual(self.turns, 10)


class Asked(Case):
    def setUp(self) -> None:
        super().setUp()
        self.logger(namespace="project_service.auth.mail").debug("An e-mail")
        self.logger(namespace="project_service.http").warn("PGRST100: wrong id=a-1")
        self.logger(namespace="project_service.http").error("It failed id=b-1")

    def test_by_level(self) -> None:
        self.assertEqual([len(self.texts(level=level)) for level in LEVELS], [3, 2, 2, 1, 0])

    def test_by_part(self) -> None:
        self.assertEqual(self.texts(part="project_service.auth"), ["An e-mail"])

    def test_by_request(self) -> None:
        self.assertEqual(self.texts(request_id="a-1"), ["PGRST100: wrong id=a-1"])
        self.assertEqual(self.texts(request_id="a"), [])

    def test_by_text(self) -> None:
        self.assertEqual(self.texts(text="FAILED"), ["It failed id=b-1"])
        self.assertEqual(self.texts(without="ID="), ["An e-mail"])
        self.assertEqual(self.texts(without="|failed|E-MAIL"), ["PGRST100: wrong id=a-1"])
        self.assertEqual(len(self.texts(without="|")), 3)

    def test_of_more_than_were_asked_for_the_last_ones_are_answered(self) -> None:
        answer = self.answer(limit=2)
        self.assertEqual([line["number"] for line in answer["lines"]], [1, 2])
        self.assertFalse(answer["complete"])
        older = self.answer(limit=2, before=answer["oldest"])
        self.assertEqual([line["number"] for line in older["lines"]], [0])
        self.assertIsNone(older["oldest"])

    def test_one_reads_on_where_the_last_answer_ended(self) -> None:
        newest = self.answer()["newest"]
        answer = self.answer(after=newest)
        self.assertEqual((answer["lines"], answer["newest"], answer["complete"]), ([], newest, True))
        self.logger().info("new")
        self.assertEqual(self.texts(after=newest), ["new"])
        self.logger().info("newer")
        self.assertEqual(self.texts(after=newest, limit=1), ["newer"])
        self.assertFalse(self.answer(after=newest, limit=1)["complete"])

    def test_after_another_start_one_begins_anew(self) -> None:
        for cursor in ("00000000-1", "x", f"{self.kept.name}-{'9' * 5000}", f"{self.kept.name}-\u0663"):
            answer = self.answer(after=cursor)
            self.assertEqual((len(answer["lines"]), answer["complete"]), (3, False))

    def test_what_has_gone_in_the_meantime_is_missed(self) -> None:
        newest = self.answer()["newest"]
        for n in range(MAX_LINES + 1):
            self.kept.write(f"{n}\n")
        self.assertFalse(self.answer(after=newest, text="no line has this")["complete"])

    def test_an_empty_log_has_a_cursor_too(self) -> None:
        self.kept = KeptLog()
        answer = self.answer()
        self.assertTrue(self.answer(after=answer["newest"])["complete"])
        self.kept.write("first\n")
        self.assertEqual(self.texts(after=answer["newest"]), ["first"])


class Chosen(TestCase):
    """With an observer of the operator's own."""

    def setUp(self) -> None:
        self.patch(log, "_log", log._Log())
        observers = globalLogPublisher._observers
        self.addCleanup(setattr, globalLogPublisher, "_observers", list(observers))

    def test_lines_are_kept_too_those_of_workers_as_they_are(self) -> None:
        install({"logger": "their.observer"}, "text", "info", keeps=True)
        Logger(namespace="here").info("said")
        line = "2026-11-28T20:31:00.000Z info     [there] of a worker"
        write_lines([line])
        answer = log.kept().answer(LogQuery(), lambda: succeed(None))
        lines = json.loads(self.successResultOf(start(answer)))["lines"]
        self.assertEqual(
            [(one["part"], one["text"]) for one in lines], [("here", "said"), ("there", "of a worker")]
        )

    def test_nothing_is_kept_unless_it_is_wanted(self) -> None:
        install({"logger": "their.observer"}, "text", "info")
        Logger(namespace="here").info("said")
        write_lines(["of a worker"])
        answer = log.kept().answer(LogQuery(), lambda: succeed(None))
        self.assertEqual(json.loads(self.successResultOf(start(answer)))["lines"], [])
