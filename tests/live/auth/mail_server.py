"""Mail servers: a real one that stores the mails that it accepts, and one that says what a test wants it to say."""

from __future__ import annotations

import socket
import ssl
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from threading import Event, Thread
from typing import Any, BinaryIO

from aiosmtpd.controller import Controller

from tests.temporary import free_port


class Mailbox:
    """The mails that a mail server has accepted."""

    def __init__(self) -> None:
        self.mails: list[Any] = []

    async def has_mail(self) -> bool:
        return bool(self.mails)

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:
        self.mails.append(envelope)
        return "250 OK"


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


class Hangup(Exception):
    """The server ends the connection."""


class Talk:
    """One connection of a scripted server."""

    def __init__(self, server: Scripted, connection: socket.socket) -> None:
        self.server = server
        self._socket = connection
        self._file: BinaryIO = connection.makefile("rb")

    def say(self, *lines: str) -> None:
        self._socket.sendall("".join(f"{line}\r\n" for line in lines).encode())

    def hear(self) -> str:
        """The next line, which the server remembers. Raises ``Hangup`` if none comes."""
        line = self._file.readline()
        if not line.endswith(b"\r\n"):
            raise Hangup
        self.server.heard.append(line[:-2].decode())
        return self.server.heard[-1]

    def take_mail(self) -> bytes:
        """A mail as it was sent, up to the lone dot."""
        mail = b""
        while (line := self._file.readline()) != b".\r\n":
            if not line:
                raise Hangup
            mail += line
        self.server.mails.append(mail)
        return mail

    def secure(self) -> None:
        assert self.server.tls is not None
        self._socket = self.server.tls.wrap_socket(self._socket, server_side=True)
        self._file = self._socket.makefile("rb")

    def hang(self) -> None:
        """Say nothing more."""
        self.server.closing.wait()
        raise Hangup

    def cut(self) -> None:
        """End what another thread waits for."""
        with suppress(OSError):
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def close(self) -> None:
        self._file.close()
        self._socket.close()


# What the server does at a command: its lines, or something to call with the connection.
Reply = str | tuple[str, ...] | Callable[[Talk], object]


def starttls(talk: Talk) -> None:
    talk.say("220 go ahead")
    talk.secure()


def data(talk: Talk) -> None:
    talk.say("354 go ahead")
    talk.take_mail()
    talk.server.reply(talk, "END")


def hang_up(talk: Talk) -> None:
    raise Hangup


POLITE: dict[str, Reply] = {
    "CONNECT": "220 mail.example.test",
    "EHLO": ("250-mail.example.test", "250 8BITMIME"),
    "HELO": "250 mail.example.test",
    "STARTTLS": starttls,
    "AUTH": "535 5.7.8 no",
    "*": "501 5.7.0 cancelled",
    "MAIL": "250 2.1.0 ok",
    "RCPT": "250 2.1.5 ok",
    "DATA": data,
    "END": "250 2.0.0 queued",
    "RSET": "250 ok",
    "QUIT": "221 bye",
}


class Scripted:
    """What one has heard, and the mails as they were sent. It is polite but for ``replies``."""

    def __init__(self, replies: Mapping[str, Reply], tls: ssl.SSLContext | None) -> None:
        self.heard: list[str] = []
        self.mails: list[bytes] = []
        self.connections = 0
        self.tls = tls
        self.closing = Event()
        self.faults: list[BaseException] = []
        self._replies = {**POLITE, **replies}
        self._talks: list[Talk] = []
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self._threads = [Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def reply(self, talk: Talk, command: str) -> None:
        reply = self._replies.get(command, "502 5.5.1 what?")
        if callable(reply):
            reply(talk)
        else:
            talk.say(*((reply,) if isinstance(reply, str) else reply))

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listening.accept()
                self.connections += 1
                self._talks.append(Talk(self, connection))
                self._threads.append(Thread(target=self._serve, args=(self._talks[-1],), daemon=True))
                self._threads[-1].start()

    def _serve(self, talk: Talk) -> None:
        try:
            self.reply(talk, "CONNECT")
            while True:
                self.reply(talk, talk.hear().partition(" ")[0].upper())
        except (Hangup, OSError):
            pass  # the client has left, or is left
        except BaseException as fault:
            self.faults.append(fault)
        finally:
            talk.close()

    def stop(self) -> None:
        self.closing.set()
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        for talk in self._talks:
            talk.cut()
        for thread in self._threads:
            thread.join(10)
        assert not self.faults, self.faults


@contextmanager
def scripted(tls: ssl.SSLContext | None = None, /, **replies: Reply) -> Iterator[Scripted]:
    """A mail server on loopback, with its own replies to some commands. CONNECT stands for the greeting, and END for
    the end of a mail."""
    server = Scripted(replies, tls)
    try:
        yield server
    finally:
        server.stop()
