"""What a worker is started with: the ports that its parent has opened, its pipes, its environment."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from attrs import evolve

from project_service.http.metrics import MULTIPROCESS
from project_service.lifecycle import start
from project_service.settings.model import Server
from project_service.workers.supervisor import FIRST_PORT_FD, STATUS_FD
from tests.fakes.workers import SETTINGS, TwoWorkers

OPEN = Server(listen=("tcp:81:backlog=9", "tcp:82:backlog=9"), admin_listen="tcp:83:backlog=9")


class Born(TwoWorkers):
    settings = evolve(SETTINGS, server=OPEN)

    def setUp(self) -> None:
        self.patch(os, "environ", {"PROJECT_SERVICE__SERVER__LOG_LEVEL": "warn", "PYTHONPATH": "/elsewhere"})
        super().setUp()
        self.begin()
        self.ports = self.reactor.ports

    def test_the_parent_opens_the_ports_and_workers_accept(self) -> None:
        self.assertEqual([port.number for port in self.ports], [81, 82, 83])
        self.assertEqual(self.workers.addresses, [port.getHost() for port in self.ports])
        self.assertEqual([port.reading for port in self.ports], [False] * 3)
        pipes = {0: "w", 1: "r", 2: "r", STATUS_FD: "r"}
        ports = {FIRST_PORT_FD + n: port.fileno() for n, port in enumerate(self.ports)}
        for process in (self.first, self.second):
            self.assertEqual(process.born_with["childFDs"], {**pipes, **ports})

    def test_a_worker_inherits_the_parents_environment_and_module_path(self) -> None:
        """It reads its settings from there after a SIGHUP."""
        numbers = self.first.born_with["env"][MULTIPROCESS]
        self.assertTrue(Path(numbers).is_dir())
        inherited = {"PROJECT_SERVICE__SERVER__LOG_LEVEL": "warn", MULTIPROCESS: numbers}
        for process in (self.first, self.second):
            found = dict(process.born_with["env"])
            self.assertEqual(found.pop("PYTHONPATH").split(os.pathsep), [path for path in sys.path if path])
            self.assertEqual(found, inherited)
            self.assertEqual(process.argv, [sys.executable, "-m", "project_service.workers.worker"])
            # It starts in its parent's directory, even if that has been deleted.
            self.assertIsNone(process.born_with["path"])

    def test_workers_are_stopped_after_the_ports_are_closed(self) -> None:
        self.ports[-1].slow = True
        stopping = start(self.workers.stop())
        self.assertEqual([port.closed for port in self.ports], [True] * 3)
        self.assertEqual([port.shut_down for port in self.ports], [False] * 3)
        self.assertEqual((self.first.signals, self.second.signals), ([], []))
        self.ports[-1].left.callback(None)
        self.successResultOf(stopping)
        self.assertEqual((self.first.ended, self.second.ended), (True, True))
