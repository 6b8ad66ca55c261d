"""Ports that the store cannot use: because of another user's socket file, or because another service has claimed
them."""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryDirectory

from twisted.trial.unittest import TestCase

from project_service.embedded import sockets
from tests.temporary import free_port


class Sockets(TestCase):
    def test_another_users_socket_file_makes_a_port_unusable(self) -> None:
        folder = TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.patch(sockets, "SOCKETS", Path(folder.name))
        port = free_port()
        left = Path(folder.name) / f"seaweedfs-filer-grpc-{port}.sock"
        left.touch()
        owner = left.lstat().st_uid
        self.patch(os, "geteuid", lambda: owner + 1)
        self.assertFalse(sockets.is_free(port))
        self.patch(os, "geteuid", lambda: owner)
        self.assertTrue(sockets.is_free(port))
        left.unlink()
        self.patch(os, "geteuid", lambda: owner + 1)
        self.assertTrue(sockets.is_free(port))


class PortClaims(TestCase):
    def test_a_claimed_port_belongs_to_one_service_until_released(self) -> None:
        one, other, port = sockets.PortClaims(), sockets.PortClaims(), free_port()
        self.addCleanup(one.release)
        self.addCleanup(other.release)
        self.assertTrue(one.claim(port))
        self.assertTrue(one.claim(port))
        self.assertFalse(other.claim(port))
        one.release()
        self.assertTrue(other.claim(port))
        self.assertFalse(one.claim(port))
