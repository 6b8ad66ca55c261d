"""Pictures: of one colour, by which the picture that another was made of can be told, and of any rows."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence


def png(red: int, green: int, blue: int, side: int = 2) -> bytes:
    """A picture of ``side`` by ``side`` pixels."""
    return encoded(side, [side * bytes((red, green, blue))] * side)


def encoded(width: int, rows: Sequence[bytes]) -> bytes:
    """A PNG of ``rows``, each of ``width`` pixels of three bytes."""
    chunks = {
        b"IHDR": struct.pack(">IIBBBBB", width, len(rows), 8, 2, 0, 0, 0),
        b"IDAT": zlib.compress(b"".join(b"\0" + row for row in rows)),
        b"IEND": b"",
    }
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        for name, data in chunks.items()
    )


def looks(picture: bytes) -> tuple[int, tuple[int, ...]]:
    """Width, and the colour of the first pixel. Needs libvips."""
    import pyvips

    image = pyvips.Image.new_from_buffer(picture, "")
    return image.width, tuple(int(value) for value in image.getpoint(0, 0))
