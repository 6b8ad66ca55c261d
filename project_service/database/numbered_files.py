"""Numbered SQL files of a project, as ``cli.project_migrations`` applies them: what their names mean, and where it is
recorded that one was applied.

``0001_notes.sql`` and ``20260801120000_tags.sql`` are numbered files; the number is everything before the first
underscore.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

from attrs import frozen

_NAME = re.compile(r"([0-9]{1,18})_.+\.sql", re.ASCII | re.IGNORECASE)
# The file beside another one by which golang-migrate and others undo that.
_DOWN = re.compile(r".+\.(down|undo|revert|rollback)\.sql", re.IGNORECASE)
HISTORY = """
create schema if not exists _project_service;
create table if not exists _project_service.project_migrations (
  number      bigint primary key,
  name        text not null,
  sha256      text not null,
  applied_at  timestamptz not null default now()
)
"""
RECORD = "insert into _project_service.project_migrations (number, name, sha256) values (%s, %s, %s)"
# Of a number that is a moment, as some tools number files.
_MOMENT = "%Y%m%d%H%M%S"
_MOMENT_DIGITS = 14


@frozen
class Numbered:
    """A numbered file. ``text`` has the line ends that it has in the folder."""

    number: int
    name: str
    text: str

    @property
    def unified(self) -> str:
        """What is run: the same on every host, whichever line ends an editor or Git has written there."""
        return self.text.replace("\r\n", "\n")

    @property
    def sha256(self) -> str:
        return _sha256(self.unified)

    def is_recorded_as(self, sha256: str) -> bool:
        """Release 0.1.0 recorded files with the line ends that they had."""
        return sha256 in (self.sha256, _sha256(self.text), _sha256(self.unified.replace("\n", "\r\n")))


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def read_folder(folder: Path) -> tuple[list[Numbered], list[str]]:
    """The numbered files of ``folder``, in order, and its faults: SQL files without a number, two of the same number,
    those that by their name undo another, and what is not UTF-8. Hidden files, and those whose name does not end in
    ``.sql``, are not looked at."""
    files: dict[int, Numbered] = {}
    faults = []
    for path in sorted(folder.iterdir()):
        if path.name.startswith(".") or path.suffix.lower() != ".sql" or path.is_dir():
            continue
        if _DOWN.fullmatch(path.name) is not None:
            faults.append(
                f"{path.name} undoes another file, going by its name, and would be applied too: keep it elsewhere"
            )
            continue
        match = _NAME.fullmatch(path.name)
        if match is None:
            faults.append(f"{path.name} has no number: rename it to something like 0001_{path.name}")
            continue
        number = int(match[1])
        if number in files:
            faults.append(f"{path.name} has the same number as {files[number].name}")
            continue
        try:
            text = path.read_bytes().decode("utf-8-sig")
        except UnicodeDecodeError:
            faults.append(f"{path.name} is not UTF-8")
            continue
        if "\0" in text:
            # libpq would end the message there and silently leave out the rest.
            faults.append(f"{path.name} has a NUL character in it")
        files[number] = Numbered(number, path.name, text)
    return [files[number] for number in sorted(files)], faults


def next_number(names: Iterable[str], applied: int, now: datetime) -> str:
    """The digits of the next file in a folder with files of these ``names``, of which the last that was applied has
    the number ``applied``: as many as the last one's, or the moment ``now`` if that is how they are numbered."""
    numbers = [match[1] for match in map(_NAME.fullmatch, names) if match is not None]
    last = max(numbers, key=int, default="0000")
    highest = max(int(last), applied)
    if len(str(highest)) == _MOMENT_DIGITS:
        return str(max(highest + 1, int(now.astimezone(UTC).strftime(_MOMENT))))
    return str(highest + 1).zfill(len(last))
