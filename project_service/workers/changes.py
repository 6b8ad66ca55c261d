"""How the workers of one service tell each other, without any delay, that something they may have cached has changed.

The workers share a piece of memory with one counter for each worker and place (a hash of what changed). A worker adds
one to its counter before it makes a change and one more when the change is known to be made, so an odd counter means
that a change is under way. The counters of all workers for one place are its *stamp*. A cached value may be used as
long as the stamp is still the one that was taken before the value was read, and no change was under way then: the
value is then at least as new as anything that any client has been told.
"""

from __future__ import annotations

import mmap
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from struct import Struct
from tempfile import TemporaryFile
from typing import IO

PLACES = 4096
_COUNT = Struct("<Q")
_MOST = (1 << 64) - 1


def place_of(name: str) -> int:
    """The place where changes of ``name`` are counted: a hash of its last three characters.

    Other names share the place. That costs a needless read of the database now and then and is never wrong.
    """
    return zlib.crc32(name[-3:].encode()) % PLACES


def size(workers: int) -> int:
    """How many bytes of shared memory so many workers need."""
    return PLACES * workers * _COUNT.size


class Changes:
    """The counters of all ``workers`` in ``memory``. This process writes only those of number ``own``.

    The counters of one place lie next to each other, so that a stamp is a single slice.
    """

    def __init__(self, memory: mmap.mmap, workers: int, own: int) -> None:
        self._memory = memory
        self._workers = workers
        self._own = own
        self._width = workers * _COUNT.size
        self._under_way: Counter[int] = Counter()

    @classmethod
    def alone(cls) -> Changes:
        """Counters in private memory, for a service that runs as a single process."""
        return cls(mmap.mmap(-1, size(1)), 1, 0)

    @classmethod
    def shared(cls, descriptor: int, workers: int, own: int) -> Changes:
        """The counters in the file that ``laid_out`` made for as many workers; it may be closed afterwards.

        Raises ``ValueError`` where the file has another size. The worker that had the number ``own`` before may have
        been killed in the middle of a change and have left odd counters behind. Its change is over, so they are made
        even.
        """
        made = cls(mmap.mmap(descriptor, size(workers)), workers, own)
        for place in range(PLACES):
            if made._count(place) % 2:
                made._add(place, 1)
        return made

    def stamp(self, place: int) -> bytes:
        """The counters of ``place``. If two stamps are equal and ``settled``, nothing changed between them."""
        start = place * self._width
        return self._memory[start : start + self._width]

    @contextmanager
    def under_way(self, place: int) -> Iterator[None]:
        """Wraps a change: entered before it can take effect, left when its outcome is known.

        Changes of one place may overlap in this process; its counter stays odd until the last of them has ended.
        """
        self._under_way[place] += 1
        self._add(place, 2 if self._under_way[place] > 1 else 1)
        try:
            yield
        finally:
            self._under_way[place] -= 1
            self._add(place, 2 if self._under_way[place] else 1)

    def happened(self, place: int) -> None:
        """Count a change that was made elsewhere, by another host or by SQL, and has been heard of just now."""
        self._add(place, 2)

    def _count(self, place: int) -> int:
        found: tuple[int] = _COUNT.unpack_from(self._memory, self._offset(place))
        return found[0]

    def _add(self, place: int, count: int) -> None:
        _COUNT.pack_into(self._memory, self._offset(place), (self._count(place) + count) & _MOST)

    def _offset(self, place: int) -> int:
        return place * self._width + self._own * _COUNT.size


def settled(stamp: bytes) -> bool:
    """Whether no change was under way when the stamp was taken."""
    return not any(count & 1 for count in stamp[:: _COUNT.size])


def laid_out(workers: int) -> IO[bytes]:
    """A file for ``Changes.shared``, with every counter at zero.

    It has no name, so nobody can remove or truncate it; the system frees it when the last process has closed it.
    """
    file = TemporaryFile(buffering=0)  # noqa: SIM115  # its end is the caller's
    file.write(bytes(size(workers)))
    return file
