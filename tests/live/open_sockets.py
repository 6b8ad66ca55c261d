"""How many connections a process has."""

from __future__ import annotations

from project_service.embedded.leftovers import PROC


def sockets_of(pid: int) -> int:
    return sum(one.is_socket() for one in (PROC / str(pid) / "fd").iterdir())
