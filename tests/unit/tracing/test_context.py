"""The headers of W3C's Trace Context, and which requests are traced."""

from __future__ import annotations

import logging

from hypothesis import example, given
from hypothesis import strategies as st
from twisted.trial.unittest import TestCase

from project_service.http.head import HeaderView
from project_service.tracing.context import MAX_STATE, Sampler, flags, headers_of, parent_of
from project_service.tracing.export import FirstMessage
from project_service.tracing.spans import Span

TRACE, CALLER = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
VALID = f"00-{TRACE}-{CALLER}-01"
# Each with what is wrong with it, by the sections of the standard.
INVALID = {
    "no value": "",
    "a version that is none (2.2.1)": f"ff-{TRACE}-{CALLER}-01",
    "version 00 with more behind it": f"{VALID}-more",
    "an id of zeros only (2.2.2)": f"00-{'0' * 32}-{CALLER}-01",
    "a span of zeros only": f"00-{TRACE}-{'0' * 16}-01",
    "capitals": VALID.upper(),
    "a short id": f"00-{TRACE[1:]}-{CALLER}-01",
    "no flags": f"00-{TRACE}-{CALLER}",
    "flags that are no number": f"00-{TRACE}-{CALLER}-zz",
    "two at once": f"{VALID},{VALID}",
}
# Of members of tracestate; keys and values are kept as they are.
MEMBERS = st.lists(
    st.tuples(
        st.from_regex(r"\A[a-z][a-z0-9_]{0,10}\Z"), st.from_regex(r"\A[!#-+\--<>-~]{1,20}\Z").map(str.strip)
    ),
    max_size=5,
    unique_by=lambda member: member[0],
)


def headers(*values: str, state: tuple[str, ...] = ()) -> HeaderView:
    pairs = [(b"traceparent", value.encode("latin-1")) for value in values]
    return HeaderView([*pairs, *((b"tracestate", value.encode("latin-1")) for value in state)])


class Parents(TestCase):
    def test_a_valid_traceparent_names_the_caller_s_span(self) -> None:
        parent = parent_of(headers(VALID))
        assert parent is not None
        self.assertEqual((f"{parent.trace_id:032x}", f"{parent.span_id:016x}"), (TRACE, CALLER))
        self.assertTrue(parent.trace_flags.sampled)
        self.assertTrue(parent.is_remote)

    def test_one_that_is_invalid_is_none(self) -> None:
        for wrong, value in INVALID.items():
            self.assertIsNone(parent_of(headers(value)), wrong)

    def test_two_are_none(self) -> None:
        self.assertIsNone(parent_of(headers(VALID, VALID)))

    def test_a_later_version_is_read_as_far_as_it_is_known(self) -> None:
        self.assertIsNotNone(parent_of(headers(f"01-{TRACE}-{CALLER}-01-more")))

    def test_an_invalid_tracestate_is_left_out_and_the_parent_stays(self) -> None:
        for state in ("no member", "a=1,a=2", "A=1", "a=\x7f", "="):
            parent = parent_of(headers(VALID, state=(state,)))
            assert parent is not None, state
            self.assertNotIn("tracestate", headers_of(parent))

    def test_a_long_tracestate_is_left_out(self) -> None:
        """Every span would keep it, and a store may refuse the head of a request that has it."""
        longest = f"a={'x' * 256},b={'x' * (MAX_STATE - 261)}"
        for state, kept in ((longest, True), (f"{longest}x", False), (f"{longest[:-4]},c=1,", False)):
            parent = parent_of(headers(VALID, state=(state,)))
            assert parent is not None
            self.assertEqual("tracestate" in headers_of(parent), kept, len(state))
        parts = parent_of(headers(VALID, state=(longest[:258], longest[259:] + "x")))
        assert parts is not None
        self.assertNotIn("tracestate", headers_of(parts))

    def test_no_header_is_taken_for_the_reason_why_a_collector_takes_nothing(self) -> None:
        """The SDK logs those that are invalid, with their text."""
        sdk, why = logging.getLogger("opentelemetry"), FirstMessage()
        sdk.addHandler(why)
        self.addCleanup(sdk.removeHandler, why)
        logging.getLogger("opentelemetry.exporter.otlp.proto.http").error("it said %s", 401)
        parent_of(headers(VALID, state=("a client's secret",)))
        self.assertEqual(why.text, "it said 401")

    @given(MEMBERS)
    def test_what_is_passed_on_is_read_again_as_the_same(self, members: list[tuple[str, str]]) -> None:
        state = tuple(f"{key}={value}" for key, value in members)
        parent = parent_of(headers(VALID, state=state))
        assert parent is not None
        own = Span.of_request(parent, True, 0).context
        sent = headers_of(own)
        again = parent_of(headers(sent["traceparent"], state=(sent["tracestate"],) if members else ()))
        assert again is not None
        self.assertEqual(again.trace_id, parent.trace_id)
        self.assertEqual(again.span_id, own.span_id)
        self.assertNotEqual(again.span_id, parent.span_id)
        self.assertEqual(list(again.trace_state.items()), members)

    @given(st.text(st.characters(max_codepoint=255)), st.text(st.characters(max_codepoint=255)))
    @example(VALID, "\x00=1")
    def test_whatever_is_sent_gives_a_valid_parent_or_none(self, sent: str, state: str) -> None:
        parent = parent_of(headers(sent, state=(state,)))
        if parent is not None:
            self.assertTrue(parent.is_valid)
            for value in headers_of(parent).values():
                self.assertRegex(value, r"\A[ -~]+\Z")


class Samples(TestCase):
    def sampler(self, ratio: float, parent_ratio: float, number: float) -> Sampler:
        return Sampler(ratio, parent_ratio, lambda: number)

    def test_without_a_parent_the_ratio_decides(self) -> None:
        self.assertTrue(self.sampler(0.1, 0.0, 0.09).samples(None))
        self.assertFalse(self.sampler(0.1, 1.0, 0.1).samples(None))
        self.assertFalse(self.sampler(0.0, 1.0, 0.0).samples(None))

    def test_a_sampled_parent_is_followed_within_a_ratio_of_its_own(self) -> None:
        parent = parent_of(headers(VALID))
        self.assertTrue(self.sampler(0.0, 0.5, 0.49).samples(parent))
        self.assertFalse(self.sampler(1.0, 0.5, 0.5).samples(parent))

    def test_one_that_is_not_sampled_is_never_traced(self) -> None:
        parent = parent_of(headers(f"{VALID[:-2]}00"))
        self.assertFalse(self.sampler(1.0, 1.0, 0.0).samples(parent))

    def test_no_id_that_a_client_makes_up_is_traced_more_often(self) -> None:
        numbers = iter([0.0, 0.9] * 2)
        sampler = Sampler(0.5, 0.5, lambda: next(numbers))
        lowest, highest = (parent_of(headers(f"00-{digit * 32}-{CALLER}-01")) for digit in ("1", "f"))
        self.assertEqual(
            [sampler.samples(one) for one in (lowest, lowest, highest, highest)], [True, False] * 2
        )

    def test_the_flags_say_whether_we_trace_and_keep_that_the_id_is_random(self) -> None:
        not_random, random = parent_of(headers(VALID)), parent_of(headers(f"{VALID[:-2]}02"))
        self.assertEqual([flags(True, not_random), flags(False, not_random)], [1, 0])
        self.assertEqual([flags(True, random), flags(False, random)], [3, 2])
        self.assertEqual([flags(True, None), flags(False, None)], [3, 2])
