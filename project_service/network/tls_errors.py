"""Why OpenSSL refused: ``OpenSSL.SSL.Error`` holds a list of triples, whose last element is the reason."""

from __future__ import annotations

from OpenSSL import SSL


def reasons(fault: SSL.Error) -> list[str]:
    """OpenSSL's texts, which contain no address; an empty list if it gave none."""
    return [one[-1] for one in fault.args[0]] if fault.args else []


def untrusted(fault: SSL.Error) -> bool:
    """Whether the other side's certificate was refused."""
    return "certificate verify failed" in reasons(fault)
