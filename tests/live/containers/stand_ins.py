"""Images in the place of PostgreSQL's and SeaweedFS's, which would have to be fetched: with the same programs, from
the extra ``embedded``, started as those images start them."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

from tests.live.containers.engine import IMAGE, Engine

POSTGRES = "localhost/postgres"
SEAWEEDFS = "localhost/seaweedfs"
PROGRAMS = "from project_service.embedded.postgres import program_directory; print(program_directory())"

_POSTGRES = f"""
    FROM {IMAGE}
    USER root
    COPY start-postgres /usr/local/bin/
    RUN ln -s "$(python -c '{PROGRAMS}')" /programs && install -d -o 10001 -g 10001 /var/lib/postgresql
    ENV PATH=/programs:$PATH PGDATA=/var/lib/postgresql/18/docker
    USER 10001
    VOLUME /var/lib/postgresql
    STOPSIGNAL SIGINT
    ENTRYPOINT ["start-postgres"]
    CMD []
"""
# The scripts are run by a server that only its own machine reaches, by no address, and once.
_START_POSTGRES = """
    #!/bin/sh -e
    if [ ! -e "$PGDATA/PG_VERSION" ]; then
      echo "$POSTGRES_PASSWORD" > /tmp/password
      initdb --username=postgres --pwfile=/tmp/password --auth-local=trust --auth-host=scram-sha-256 > /dev/null
      echo 'host all all all scram-sha-256' >> "$PGDATA/pg_hba.conf"
      pg_ctl --wait --options="-c listen_addresses='' -c unix_socket_directories=/tmp" start > /dev/null
      for script in /docker-entrypoint-initdb.d/*.sql; do
        psql --host=/tmp --username=postgres --no-psqlrc --set=ON_ERROR_STOP=1 --file="$script"
      done
      pg_ctl --wait --mode=fast stop > /dev/null
    fi
    exec postgres -c listen_addresses='*' -c unix_socket_directories=/tmp
"""
_SEAWEEDFS = f"""
    FROM {IMAGE}
    USER root
    COPY wget /usr/local/bin/
    RUN install -d -o 10001 -g 10001 /data
    USER 10001
    VOLUME /data
    ENTRYPOINT ["weed"]
    CMD []
"""
_WGET = """
    #!/opt/project-service/bin/python
    import sys, urllib.request
    urllib.request.urlopen(sys.argv[-1], timeout=5)
"""


def build_stand_ins(engine: Engine, folder: Path) -> None:
    for name, text in (("start-postgres", _START_POSTGRES), ("wget", _WGET)):
        (folder / name).write_text(dedent(text).lstrip())
        (folder / name).chmod(0o755)
    for name, text in ((POSTGRES, _POSTGRES), (SEAWEEDFS, _SEAWEEDFS)):
        file = folder / "Containerfile"
        file.write_text(dedent(text))
        how = ["--quiet", "--isolation=chroot", "--network=host", "--format=docker"]
        engine.run("buildah", "build", *how, f"--file={file}", f"--tag={name}", str(folder))
