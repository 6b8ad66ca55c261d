"""Lets one user pass through the directories above a path.

Root's home is usually closed to others, so PostgreSQL, which must not run as root, could reach neither its data nor
its program below it. An entry in the access control list of each closed directory ("this user may pass", acl(5)) is
enough. Nothing becomes listable or readable by it, and others get no rights.
"""

from __future__ import annotations

import os
import shlex
import struct
from pathlib import Path

from attrs import frozen

from project_service.embedded.command import Account, ChildFailed

ATTRIBUTE = "system.posix_acl_access"
VERSION = 2
USER_OBJ, USER, GROUP_OBJ, GROUP, MASK, OTHER = 0x01, 0x02, 0x04, 0x08, 0x10, 0x20
NO_ID = 0xFFFFFFFF
PASS = 0o1
READ = 0o4


@frozen(order=True)
class Entry:
    """An entry of an access control list. Entries sort as the kernel requires it: by tag, then by id."""

    tag: int
    identifier: int
    permissions: int


def let_pass(path: Path, account: Account) -> list[Path]:
    """Let ``account`` pass through the directory ``path`` and all above it. Returns the directories that were
    changed.

    Raises ``ChildFailed``, which names remedies, if that is not possible.
    """
    path = path.resolve()
    changed = []
    for directory in (*reversed(path.parents), path):
        stat = directory.stat()
        entries = _entries(directory, stat.st_mode)
        if may_pass(entries, stat.st_uid, stat.st_gid, account):
            continue
        try:
            os.setxattr(directory, ATTRIBUTE, pack(with_pass(entries, account.uid)))
        except OSError as fault:
            raise ChildFailed(
                f"PostgreSQL runs as the user {account.name}, who may not pass through {directory}, and that cannot "
                f"be changed ({fault.strerror}); run `chmod o+x {directory}`, use a --data-dir elsewhere, or start "
                "the service as an ordinary user"
            ) from None
        changed.append(directory)
    return changed


def insist_on_reading(installed: Path, package: Path, account: Account) -> None:
    """Raises ``ChildFailed``, which names remedies, if ``account`` may not read ``installed``, a directory of
    ``package``. pip gives files the rights that the umask leaves, and root's may leave none to others."""
    stat = installed.stat()
    if not may_pass(_entries(installed, stat.st_mode), stat.st_uid, stat.st_gid, account, READ):
        raise ChildFailed(
            f"PostgreSQL runs as the user {account.name}, who may not read its files in {installed}, because they "
            f"were installed with a umask that closes them; run `chmod -R go+rX {shlex.quote(str(package))}*`, "
            "install them with the umask 022, or start the service as an ordinary user"
        )


def may_pass(
    entries: tuple[Entry, ...], owner: int, group: int, account: Account, wanted: int = PASS
) -> bool:
    """Whether the account may pass through a directory, by the access check algorithm of acl(5). With another
    ``wanted``: whether it has that right."""
    by_tag = {entry.tag: entry.permissions for entry in entries if entry.tag not in {USER, GROUP}}
    mask = by_tag.get(MASK, 0o7)
    if account.uid == owner:
        return bool(by_tag[USER_OBJ] & wanted)
    for entry in entries:
        if entry.tag == USER and entry.identifier == account.uid:
            return bool(entry.permissions & mask & wanted)
    if account.gid == group:
        return bool(by_tag[GROUP_OBJ] & mask & wanted)
    for entry in entries:
        if entry.tag == GROUP and entry.identifier == account.gid:
            return bool(entry.permissions & mask & wanted)
    return bool(by_tag[OTHER] & wanted)


def with_pass(entries: tuple[Entry, ...], uid: int) -> tuple[Entry, ...]:
    """``entries`` with the right to pass for one user. The mask, which limits such entries, allows passing too."""
    kept = [
        entry
        for entry in entries
        if not (entry.tag == MASK or (entry.tag == USER and entry.identifier == uid))
    ]
    own = [entry.permissions for entry in entries if entry.tag == USER and entry.identifier == uid]
    masks = [entry.permissions for entry in entries if entry.tag == MASK]
    group = next(entry.permissions for entry in entries if entry.tag == GROUP_OBJ)
    mask = (masks[0] if masks else group) | PASS
    return tuple(sorted([*kept, Entry(USER, uid, (own[0] if own else 0) | PASS), Entry(MASK, NO_ID, mask)]))


def from_mode(mode: int) -> tuple[Entry, ...]:
    """The access control list that is equivalent to a plain mode."""
    return (
        Entry(USER_OBJ, NO_ID, mask_of(mode, 6)),
        Entry(GROUP_OBJ, NO_ID, mask_of(mode, 3)),
        Entry(OTHER, NO_ID, mask_of(mode, 0)),
    )


def mask_of(mode: int, shift: int) -> int:
    return (mode >> shift) & 0o7


def pack(entries: tuple[Entry, ...]) -> bytes:
    """The list in the form of the extended attribute (linux/posix_acl_xattr.h)."""
    packed = [struct.pack("<HHI", entry.tag, entry.permissions, entry.identifier) for entry in entries]
    return struct.pack("<I", VERSION) + b"".join(packed)


def unpack(attribute: bytes) -> tuple[Entry, ...]:
    """The inverse of ``pack``. Raises ``ValueError`` for anything else."""
    if len(attribute) % 8 != 4 or struct.unpack_from("<I", attribute)[0] != VERSION:
        raise ValueError("not an access control list")
    found = struct.iter_unpack("<HHI", attribute[4:])
    return tuple(Entry(tag, identifier, permissions) for tag, permissions, identifier in found)


def _entries(directory: Path, mode: int) -> tuple[Entry, ...]:
    try:
        return unpack(os.getxattr(directory, ATTRIBUTE))
    except (OSError, ValueError):
        return from_mode(mode)
