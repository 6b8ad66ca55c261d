"""Bodies that are made to take long: much of the same, deep, or never ended. Each is about ``size`` bytes long."""

from __future__ import annotations


def array(item: bytes, size: int) -> bytes:
    return b"[" + b",".join([item] * (size // (len(item) + 1))) + b"]"


def json_bodies(size: int) -> dict[str, bytes]:
    """Some are rows of a table whose columns are ``id``, a text, and ``j``, which is JSON."""
    return {
        "numbers": array(b"1", size),
        "long numbers": array(b"1.00000000000000001", size),
        "infinite numbers": array(b"1e999", size),
        "rows": array(b'{"id":"1"}', size),
        "rows with infinite numbers": array(b'{"id":1e999}', size),
        "rows of lists": array(b'{"j":[[1],[2]]}', size),
        "empty objects": array(b"{}", size),
        "empty lists": array(b"[]", size),
        "deep lists": b"[" * (size // 2) + b"]" * (size // 2),
        "deep objects": b'{"a":' * (size // 6) + b"1" + b"}" * (size // 6),
        "a row of lists": b'{"id":"x","j":' + array(b"[]", size) + b"}",
        "names": b"{" + b",".join([b'"%d":1' % number for number in range(size // 10)]) + b"}",
        "open lists": b"[" * size,
        "pairs of brackets": b"[]" * (size // 2),
        "quotes": b'"' * size,
        "an open string": b"[" * 2000 + b'"' + rb"\"" * (size // 2 - 2000),
        "blanks": b" " * size + b"1",
        "no JSON": b"x" * size,
    }


def csv_bodies(size: int) -> dict[str, bytes]:
    """Most have the one column ``id``."""
    return {
        "blank lines": b"id\n" + b"\n" * size,
        "an open quote": b'id\n"' + b"x\n" * (size // 2),
        "short rows": b"id\n" + b"1\n" * (size // 2),
        "quoted rows": b"id\n" + b'""\n' * (size // 3),
        "cells": b",".join([b"a"] * (size // 2)) + b"\n",
        "a long name": b"a" * (size // 2) + b"\n" + b"1\n" * (size // 4),
    }
