"""A WebM file (RFC 9559) of one-pixel pictures, one a second, with padding between them: seeking takes ranges."""

from __future__ import annotations

import struct
from base64 import b64decode

# A key frame of VP8, as a WebP file has it behind the 20 bytes of its container.
_PIXEL = b64decode("UklGRiIAAABXRUJQVlA4IBYAAAAwAQCdASoBAAEADsD+JaQAA3AAAAAA")[20:]
_CUES = "1C53BB6B"


def _element(identifier: str, *content: bytes) -> bytes:
    data = b"".join(content)
    return bytes.fromhex(identifier) + (len(data) | 1 << 56).to_bytes(8) + data


def _number(identifier: str, value: int) -> bytes:
    return _element(identifier, value.to_bytes(8))


def _cues(positions: list[int]) -> bytes:
    return _element(
        _CUES,
        *(
            _element("BB", _number("B3", second * 1000), _element("B7", _number("F7", 1), _number("F1", at)))
            for second, at in enumerate(positions)
        ),
    )


def film(seconds: int, padding: int) -> bytes:
    """``padding`` bytes follow each second."""
    head = _element(
        "1A45DFA3", _number("4286", 1), _number("42F7", 1), _number("42F2", 4), _number("42F3", 8),
        _element("4282", b"webm"), _number("4287", 2), _number("4285", 2),
    )  # fmt: skip
    duration = _element("4489", struct.pack(">d", seconds * 1000))
    info = _element(
        "1549A966",
        _number("2AD7B1", 1_000_000),
        duration,
        _element("4D80", b"test"),
        _element("5741", b"test"),
    )
    track = _element(
        "AE", _number("D7", 1), _number("73C5", 1), _number("83", 1), _element("86", b"V_VP8"),
        _element("E0", _number("B0", 1), _number("BA", 1)),
    )  # fmt: skip
    begin = info + _element("1654AE6B", track)
    clusters = [
        _element("1F43B675", _number("E7", second * 1000), _element("A3", b"\x81\0\0\x80", _PIXEL))
        + _element("EC", bytes(padding))
        for second in range(seconds)
    ]
    first = len(begin) + len(_cues([0] * seconds))
    positions = [first + sum(map(len, clusters[:second])) for second in range(seconds)]
    return head + _element("18538067", begin, _cues(positions), *clusters)
