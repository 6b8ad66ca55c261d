"""What passes between the supervisor and its workers: its assignment, and the lines on the pipes.

The *assignment* is one line of JSON on a worker's standard input, so that no secret shows in the process list. That
pipe stays open as long as the supervisor lives; a worker that reads its end stops. The later lines::

    worker -> supervisor   ready                    it answers requests
    worker -> supervisor   all                      are all workers ready?
    worker -> supervisor   reload                   read the configuration again, as at a SIGHUP
    supervisor -> worker   check N                  are you ready? (in round N)
    worker -> supervisor   works N, fails N PARTS   the answer; PARTS are what does not work, with commas between
    supervisor -> worker   all works, all fails     the verdict, to each worker that asked
    supervisor -> worker   renew                    read the certificates again
    worker -> supervisor   log N QUERY              which of the last lines of the log are such? (JSON)
    supervisor -> worker   log N LINES              the answer (JSON)
"""

from __future__ import annotations

import pickle
from base64 import b64decode, b64encode
from pathlib import Path

import orjson
from attrs import evolve, fields, frozen

from project_service import __version__
from project_service.settings.model import INNER_SECTIONS, SECTIONS, Settings, StageDatabase
from project_service.settings.reading import CONSOLE_SETTINGS, Launch, Source

READY = b"ready"
ASK = b"all"
CHECK = b"check"
WORKS = b"works"
FAILS = b"fails"
RENEW = b"renew"
LOG = b"log"
RELOAD = b"reload"

# The descriptors of a worker, after its standard streams: the pipe to the supervisor, then the ports.
STATUS_FD = 3
FIRST_PORT_FD = 4

# Settings of an embedded store that only the supervisor knows, because it started the store; besides the secret key.
_STORE_SETTINGS = (
    "endpoint_url",
    "region",
    "access_key_id",
    "addressing_style",
    "session_token",
    "credentials_file",
)


@frozen
class Assignment:
    """Everything that a worker has to know.

    ``settings`` are the supervisor's current ones, which may differ from what the file says by now. They are None if
    the worker's code has another version than the supervisor's; the worker then reads them from ``source`` itself, as
    it does after a SIGHUP.
    """

    source: Source
    processes: int
    settings: Settings | None

    @classmethod
    def of(cls, launch: Launch, settings: Settings, processes: int) -> Assignment:
        """The assignment of every worker of ``launch``.

        What embedded mode fills in is passed on as command line options, since those win over the configuration file
        whenever a worker reads it again: the addresses of embedded servers, and the folder of e-mails.
        """
        options = dict(launch.source.options)
        if launch.embeds_database and settings.database.dsn is not None:
            options["database.dsn"] = settings.database.dsn.reveal()
            console = {f"server.{name}": getattr(settings.server, name) for name in CONSOLE_SETTINGS}
            options |= {name: value for name, value in console.items() if value is not None}
        if launch.embeds_store and settings.store.secret_access_key is not None:
            options |= {f"store.{name}": getattr(settings.store, name) for name in _STORE_SETTINGS}
            options["store.secret_access_key"] = settings.store.secret_access_key.reveal()
        if settings.smtp.mail_dir is not None:
            options["smtp.mail_dir"] = settings.smtp.mail_dir
        return cls(evolve(launch.source, options=options), processes, settings)

    def to_json(self) -> bytes:
        message = {
            "config": self.source.config,
            "options": self.source.options,
            "data_dir": self.source.data_dir,
            "processes": self.processes,
            "settings": b64encode(pickle.dumps(self.settings)).decode(),
            "version": version(),
        }
        return orjson.dumps(message, default=str)

    @classmethod
    def from_json(cls, raw: bytes) -> Assignment:
        message = orjson.loads(raw)
        settings = None
        # The versions can differ when the package was upgraded under a running supervisor, and a pickle of another
        # version must not be loaded. Unpickling is safe, because the line comes from our own supervisor.
        if message["version"] == version():
            settings = pickle.loads(b64decode(message["settings"]))  # noqa: S301  # see above
        config, data_dir = (message[name] and Path(message[name]) for name in ("config", "data_dir"))
        return cls(Source(config, message["options"], data_dir), message["processes"], settings)


def version() -> list[str]:
    """The package's version and the names of all settings. The number alone does not tell what a pickle of the
    settings has: a checkout that the package was installed from changes without a new number."""
    sections = (Settings, *SECTIONS.values(), *INNER_SECTIONS.values(), StageDatabase)
    return [
        __version__,
        *(f"{section.__name__}.{one.name}" for section in sections for one in fields(section)),
    ]
