"""A request as the route hands it to a database's table API, and the clock of its stages."""

from __future__ import annotations

from time import perf_counter

from attrs import define, field, frozen


@frozen
class Call:
    """``segments`` and ``pairs`` are decoded; header names are lower-case. ``path`` is the resource's public path,
    for Location headers; ``presented_key`` the project key that came along."""

    method: str
    segments: tuple[str, ...]
    pairs: tuple[tuple[str, str], ...] = ()
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = field(default=b"", repr=False)
    path: str = "/"
    base_url: str = ""
    presented_key: str | None = field(default=None, repr=False)
    is_service: bool = False

    @property
    def resource(self) -> str:
        """The path as PostgREST would see it, below the base path."""
        return "/" + "/".join(self.segments)


@define
class Timing:
    """How long each stage took, for ``Server-Timing``."""

    _marks: list[tuple[str, float]] = field(factory=list)
    _since: float = field(factory=perf_counter)

    def mark(self, stage: str) -> None:
        now = perf_counter()
        self._marks.append((stage, (now - self._since) * 1000))
        self._since = now

    def header(self) -> tuple[str, str]:
        return ("Server-Timing", ", ".join(f"{stage};dur={ms:.3f}" for stage, ms in self._marks))
