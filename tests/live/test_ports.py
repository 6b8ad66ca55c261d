"""Ports that several processes share: no one of them takes all the clients that come at once."""

from __future__ import annotations

import socket
from typing import Any

import pytest_twisted
from twisted.internet import reactor as installed
from twisted.internet.interfaces import IAddress
from twisted.internet.protocol import Factory, Protocol

from project_service.ports import take_turns

reactor: Any = installed


class Counting(Factory):
    met = 0

    def buildProtocol(self, addr: IAddress | None) -> Protocol:
        self.met += 1
        return Protocol()


@pytest_twisted.ensureDeferred
async def test_one_client_is_accepted_in_a_turn() -> None:
    factory = Counting()
    port = reactor.listenTCP(0, factory, interface="127.0.0.1")
    take_turns(port)
    port.stopReading()  # the turns are taken by hand
    clients = [socket.create_connection(("127.0.0.1", port.getHost().port)) for _ in range(5)]
    for turn in range(1, 6):
        port.doRead()
        assert factory.met == turn
    for client in clients:
        client.close()
    await port.stopListening()
