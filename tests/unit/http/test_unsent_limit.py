"""Which connection is aborted when too much has been written that clients do not read."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from project_service.http.limits import LARGE_BYTES, UnsentLimit

MIB = 1024 * 1024


class Client:
    def __init__(self) -> None:
        self.unsent_bytes = 0
        self.aborted = False

    def abort(self) -> None:
        self.aborted = True


class Cut(SynchronousTestCase):
    def setUp(self) -> None:
        self.now = 0.0
        self.limit = UnsentLimit(lambda: self.now, 10 * MIB)

    def written(self, size: int) -> Client:
        client = Client()
        client.unsent_bytes = size
        self.limit.wrote(client)
        return client

    def test_no_connection_is_aborted_below_the_limit(self) -> None:
        self.assertFalse(any(one.aborted for one in [self.written(5 * MIB), self.written(5 * MIB)]))

    def test_the_slowest_reader_is_aborted_first(self) -> None:
        slow, slower, fast = [self.written(3 * MIB) for _ in range(3)]
        self.now = 10.0
        slow.unsent_bytes, fast.unsent_bytes, slower.unsent_bytes = 2 * MIB, MIB, 3 * MIB
        last = self.written(6 * MIB)
        self.assertEqual([one.aborted for one in (slow, slower, fast, last)], [False, True, False, False])
        self.written(3 * MIB)
        self.assertEqual([one.aborted for one in (slow, fast, last)], [True, False, False])

    def test_a_client_that_has_hardly_begun_is_aborted_last(self) -> None:
        stalled = self.written(6 * MIB)
        stalled.unsent_bytes = 3 * MIB
        self.now = 2.0
        begun = self.written(4 * MIB)
        self.now = 2.1
        begun.unsent_bytes = 3 * MIB + 1
        self.written(6 * MIB)
        self.assertEqual([stalled.aborted, begun.aborted], [True, False])

    def test_a_single_connection_is_not_limited(self) -> None:
        self.assertFalse(self.written(100 * MIB).aborted)

    def test_a_client_with_little_left_to_read_is_not_aborted(self) -> None:
        first = self.written(8 * MIB)
        first.unsent_bytes = LARGE_BYTES - 1
        self.assertFalse(self.written(8 * MIB).aborted)
        self.written(8 * MIB)
        self.assertFalse(first.aborted)

    def test_closed_connections_no_longer_count(self) -> None:
        first = self.written(8 * MIB)
        self.limit.leave(first)
        self.limit.leave(first)
        second = self.written(8 * MIB)
        self.assertFalse(first.aborted or second.aborted)
