"""What the workers of one service tell each other at once: that what others may remember is changed, or has been.

In memory that all of them see, each worker counts twice for each change, so that its count is odd while one is under
way. Who reads a value between two equal stamps knows that it is as new as any that somebody has been told of.
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
    """Where changes of ``name`` are counted, by its last three characters; others are counted there as well."""
    return zlib.crc32(name[-3:].encode()) % PLACES


def size(workers: int) -> int:
    """Bytes of memory for so many workers."""
    return PLACES * workers * _COUNT.size


class Changes:
    """The counts of ``workers`` in ``memory``, which this process writes at number ``own`` only.

    All counts of a place lie together, so that a stamp is one slice.
    """

    def __init__(self, memory: mmap.mmap, workers: int, own: int) -> None:
        self._memory = memory
        self._workers = workers
        self._own = own
        self._width = workers * _COUNT.size
        self._under_way: Counter[int] = Counter()

    @classmethod
    def alone(cls) -> Changes:
        """For the only process of a service."""
        return cls(mmap.mmap(-1, size(1)), 1, 0)

    @classmethod
    def shared(cls, descriptor: int, workers: int, own: int) -> Changes:
        """``descriptor`` is of what ``laid_out`` made, for as many workers; ``ValueError`` where it is not. It may be
        closed afterwards.

        Whoever had this number before may have been killed in the middle of a change, which is over then.
        """
        made = cls(mmap.mmap(descriptor, size(workers)), workers, own)
        for place in range(PLACES):
            if made._count(place) % 2:
                made._add(place, 1)
        return made

    def stamp(self, place: int) -> bytes:
        """Equal stamps: nothing has changed between them, unless one was under way (see ``settled``)."""
        start = place * self._width
        return self._memory[start : start + self._width]

    @contextmanager
    def under_way(self, place: int) -> Iterator[None]:
        """Around a change, from before it is made until it is known to be."""
        self._under_way[place] += 1
        self._add(place, 2 if self._under_way[place] > 1 else 1)
        try:
            yield
        finally:
            self._under_way[place] -= 1
            self._add(place, 2 if self._under_way[place] else 1)

    def happened(self, place: int) -> None:
        """A change that somebody else has made."""
        self._add(place, 2)

    def _count(self, place: int) -> int:
        found: tuple[int] = _COUNT.unpack_from(self._memory, self._offset(place))
        return found[0]

    def _add(self, place: int, count: int) -> None:
        _COUNT.pack_into(self._memory, self._offset(place), (self._count(place) + count) & _MOST)

    def _offset(self, place: int) -> int:
        return place * self._width + self._own * _COUNT.size


def settled(stamp: bytes) -> bool:
    """Whether no change was under way."""
    return not any(count & 1 for count in stamp[:: _COUNT.size])


def laid_out(workers: int) -> IO[bytes]:
    """For ``Changes.shared``: a file without a name, which nobody can remove or cut. It ends with who has it open."""
    file = TemporaryFile(buffering=0)  # noqa: SIM115  # its end is the caller's
    file.write(bytes(size(workers)))
    return file
