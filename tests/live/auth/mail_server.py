"""A real mail server that stores the mails that it accepts."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiosmtpd.controller import Controller

from tests.temporary import free_port


class Mailbox:
    """The mails that a mail server has accepted."""

    def __init__(self) -> None:
        self.mails: list[Any] = []
        self.quits = 0

    async def has_mail(self) -> bool:
        return bool(self.mails)

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:
        self.mails.append(envelope)
        return "250 OK"

    async def handle_QUIT(self, server: Any, session: Any, envelope: Any) -> str:
        self.quits += 1
        return "221 Bye"


@asynccontextmanager
async def mail_server(hostname: str = "127.0.0.1", **options: Any) -> AsyncIterator[tuple[Mailbox, int]]:
    mailbox = Mailbox()
    controller = Controller(mailbox, hostname=hostname, port=0, **options)
    controller.port = free_port()
    controller.start()
    try:
        yield mailbox, controller.port
    finally:
        controller.stop()
