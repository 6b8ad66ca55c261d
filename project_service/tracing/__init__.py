"""Traces by OpenTelemetry: what is put around the parts if the settings name a collector, and nothing otherwise.

Nothing below ``application`` knows this package, and it alone imports OpenTelemetry. ``seams`` has what stands in for
the parts' own classes, ``spans`` what is under way and what is recorded of it, ``context`` the headers of W3C, and
``export`` the way to the collector.
"""

from __future__ import annotations

import os
import random
import socket
from collections.abc import Callable
from functools import partial
from typing import Any
from uuid import uuid4

from attrs import frozen
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from project_service import __version__
from project_service.auth.mail import Outbox
from project_service.auth.passwords import Hashes
from project_service.database.connection import Connection
from project_service.database.pool import Pool
from project_service.http.edge import Traces
from project_service.settings.model import Store, Tracing
from project_service.storage.s3.client import S3Store, connect_store
from project_service.tracing import seams
from project_service.tracing.context import Sampler
from project_service.tracing.export import Export
from project_service.tracing.spans import Recorder


@frozen
class Tracer:
    """Traces what this process does. ``export`` is to be stopped when everything else has been."""

    reactor: Any
    export: Export
    recorder: Recorder
    requests: Traces

    @classmethod
    def of(cls, reactor: Any, settings: Tracing) -> Tracer:
        """Starts the thread that exports."""
        export = Export.of(reactor, settings)
        # As in the semantic conventions of OpenTelemetry. Nothing is taken from its variables in the environment.
        resource = Resource(
            {
                "service.name": settings.service_name,
                "service.version": __version__,
                "service.instance.id": str(uuid4()),
                "process.pid": os.getpid(),
                "host.name": socket.gethostname(),
            }
        )
        recorder = Recorder(export.put, resource, InstrumentationScope("project_service", __version__))
        usual, of_parents = settings.sample_ratio, settings.parent_sample_ratio
        sampler = Sampler(usual, usual if of_parents is None else of_parents, random.random)
        return cls(reactor, export, recorder, seams.TracedRequests(recorder, sampler, reactor))

    def connections(self, database: str, server: str = "primary") -> Callable[[Any], Connection]:
        """What makes connections to ``database``, as operators call it, or to a "reader" of it."""
        return seams.connections(self.recorder, database, server)

    def watch(self, database: str, pool: Pool) -> None:
        """Record how long requests wait for connections of ``pool``."""
        seams.watch_waits(pool, self.recorder, database)

    def connect_store(self, reactor: Any, settings: Store) -> S3Store:
        """As ``s3.client.connect_store``."""
        sender = partial(seams.TracedSender, recorder=self.recorder)
        return connect_store(reactor, settings, sender, seams.TracedClient)

    def hashes(self, hashes: Hashes) -> Hashes:
        """As ``hashes``."""
        return seams.TracedHashes(self.recorder, hashes)

    def outbox(self, *arguments: Any) -> Outbox[Any]:
        """As ``Outbox``."""
        return seams.TracedOutbox(*arguments, recorder=self.recorder)
