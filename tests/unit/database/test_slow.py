"""What the log says of slow statements: their shape, and never a value."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.task import Clock
from twisted.logger import formatEvent
from twisted.trial.unittest import TestCase

from project_service.database.slow import LINES_SECONDS, MAX_LINES, MAX_SHOWN, SlowStatements, shape_of
from project_service.log import request_at_work
from tests.captured_log import logged_until_the_end

# Values that no word of a statement contains.
SECRETS = st.text("jqz'\"\\%$-/*", min_size=1, max_size=20).map(lambda text: f"zqj{text}qzj")


def written(secret: str) -> st.SearchStrategy[str]:
    """``secret`` in each way in which a statement may have it."""
    plain = secret.replace("'", "''")
    escaped = secret.replace("\\", "\\\\").replace("'", "\\'")
    tag = f"$tag${secret}$tag$" if "$" not in secret else f"'{plain}'"
    comment = secret.replace("*/", "").replace("/*", "")
    line = f"-- {secret}\n"
    return st.sampled_from(
        (f"'{plain}'", f"E'{escaped}'", f"N'{plain}'", tag, f"/* {comment} */ 1", f"{line} 2")
    )


class Shapes(TestCase):
    def test_literals_numbers_and_parameters_are_one_sign(self) -> None:
        for sql in (
            "select id, name\n  from auth.users -- who\n where email = %s and cost > 1.5e3",
            "select id, name from auth.users where email = $1 and cost > %(cost)s",
            "select id, name from auth.users where email = 'ann@example.com' and cost > 3",
        ):
            self.assertEqual(
                shape_of(sql), "select id, name from auth.users where email = ? and cost > ?", sql
            )
        self.assertEqual(shape_of(b'SELECT count(*)::int FROM "A""b"'), 'select count(*)::int from "A""b"')
        self.assertEqual(shape_of("select 7 %% 2"), "select ? % ?")

    def test_long_ones_are_cut_off_and_unreadable_ones_are_shown_as_far_as_they_are_read(self) -> None:
        long = shape_of(f"select {', '.join(f'c{n}' for n in range(2000))}")
        self.assertEqual((len(long), long[-5:]), (MAX_SHOWN + 4, long[MAX_SHOWN - 1] + " ..."))
        self.assertEqual(shape_of("select a from b where c = 'never ends"), "select a from b where c = ...")

    @given(st.data(), SECRETS)
    def test_no_value_is_in_it_however_it_is_written(self, data: st.DataObject, secret: str) -> None:
        values = data.draw(st.lists(written(secret), min_size=1, max_size=3))
        before = data.draw(st.sampled_from(("select * from t where a = ", "insert into t values (", "")))
        shape = shape_of(before + ", ".join(values))
        self.assertNotIn("zqj", shape)
        self.assertNotIn("qzj", shape)


class OneRequest:
    request_id = "asked-1"
    trace_id = ""
    span = None

    def outlined(self) -> str:
        return "GET /dev/db/main/rest/items?id=eq.$"


class Reports(TestCase):
    def setUp(self) -> None:
        self.clock = Clock()
        self.slow = SlowStatements("dev/main", 0.5, self.clock.seconds)
        self.events = logged_until_the_end(self)
        self.addCleanup(request_at_work.set, None)

    @property
    def lines(self) -> list[str]:
        return [formatEvent(event) for event in self.events]

    def test_a_line_names_statement_role_time_and_request(self) -> None:
        self.slow.report(0.6789, "select 'x' from t", "")
        request_at_work.set(OneRequest())
        self.slow.report(1, "select 'x' from t", "")
        self.slow.report(2, "select 'x' from t", "anon")
        self.assertEqual(
            self.lines,
            [
                "slow statement on dev/main: 0.679 s as the service: select ? from t id=-",
                "slow statement on dev/main: 1 s as the service: select ? from t id=asked-1",
                "slow statement on dev/main: 2 s as anon: GET /dev/db/main/rest/items?id=eq.$ id=asked-1",
            ],
        )
        self.assertEqual(self.slow.count, 3)

    def test_when_all_are_slow_a_few_lines_a_second_say_so_and_all_are_counted(self) -> None:
        for _ in range(MAX_LINES + 3):
            self.slow.report(1, "select", "")
        self.assertEqual(len(self.lines), MAX_LINES)
        self.clock.advance(LINES_SECONDS)
        self.slow.report(1, "select", "")
        self.assertEqual(self.lines[MAX_LINES:][0], "3 more statements on dev/main were slow")
        self.assertEqual((len(self.lines), self.slow.count), (MAX_LINES + 2, MAX_LINES + 4))

    def test_with_0_seconds_nothing_is_slow(self) -> None:
        for seconds, slow in ((0.0, False), (3.0, True), (0.0, False)):
            self.slow.limit(seconds)
            self.assertEqual(self.slow.seconds <= 3.0, slow)
