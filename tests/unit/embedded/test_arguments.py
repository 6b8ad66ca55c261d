"""The arguments and files of the embedded programs, without starting any."""

from __future__ import annotations

import os
from pathlib import Path
from random import Random

from hypothesis import given
from hypothesis import strategies as st
from psycopg2.extensions import parse_dsn
from twisted.trial.unittest import TestCase

from project_service import files
from project_service.embedded import postgres, seaweed, sockets
from project_service.embedded.sockets import Secrets, load_or_make, load_ports, save_ports
from tests.temporary import temporary_directory

SECRETS = Secrets("superuser", "owner", "access", "secret", "signing")
PORTS = {name: 12001 + number for number, name in enumerate(sockets.NAMES)}


class Postgres(TestCase):
    def test_postgresql_listens_on_no_tcp_port_and_keeps_fsync(self) -> None:
        arguments = postgres.server_arguments("/bin/postgres", Path("/data"), Path("/run/it"))
        self.assertEqual(arguments[:3], ("/bin/postgres", "-D", "/data"))
        self.assertIn("listen_addresses=", arguments)
        self.assertIn("unix_socket_permissions=0700", arguments)
        self.assertIn('unix_socket_directories="/run/it"', arguments)
        self.assertFalse([one for one in arguments if one.startswith(("fsync", "full_page", "synchronous"))])

    def test_a_socket_directory_with_comma_and_quotes_is_quoted(self) -> None:
        arguments = postgres.server_arguments("/p", Path("/d"), Path('/a, "b"'))
        self.assertIn('unix_socket_directories="/a, ""b"""', arguments)

    def test_initdb_requires_passwords_and_syncs(self) -> None:
        arguments = postgres.initdb_arguments("/bin/initdb", Path("/data"), Path("/pw"))
        self.assertIn("--auth=scram-sha-256", arguments)
        self.assertIn("--pwfile=/pw", arguments)
        self.assertNotIn("--no-sync", arguments)

    def test_socket_paths_are_limited_to_107_bytes(self) -> None:
        fixed = len("/.s.PGSQL.5432")
        self.assertTrue(postgres.fits(Path("/" + "x" * (107 - fixed - 1))))
        self.assertFalse(postgres.fits(Path("/" + "x" * (107 - fixed))))
        self.assertFalse(postgres.fits(Path("/a,b")))
        # The limit counts bytes, not characters.
        self.assertFalse(postgres.fits(Path("/" + "ä" * 50)))

    @given(st.text(st.characters(exclude_characters="\0", codec="utf-8"), min_size=1))
    def test_any_password_and_path_survives_the_connection_string(self, text: str) -> None:
        parsed = parse_dsn(postgres.dsn("project_service", text, "project", Path("/somewhere") / text))
        self.assertEqual(parsed["password"], text)
        self.assertEqual(parsed["host"], str(Path("/somewhere") / text))
        self.assertEqual((parsed["user"], parsed["dbname"]), ("project_service", "project"))

    def test_log_levels_of_postgresql(self) -> None:
        self.assertEqual(postgres.level("LOG:  database system is ready"), "debug")
        self.assertEqual(postgres.level("FATAL:  out of memory"), "warn")
        self.assertEqual(postgres.level("PANIC:  could not write"), "error")
        self.assertEqual(postgres.level("FATAL:  the database system is starting up"), "debug")


class Seaweed(TestCase):
    def test_seaweedfs_uses_loopback_small_volumes_and_no_telemetry(self) -> None:
        arguments = seaweed.arguments("/bin/weed", Path("/data/ids"), PORTS)
        for wanted in (
            "-ip=127.0.0.1",
            "-ip.bind=127.0.0.1",
            "-master.telemetry=false",
            "-master.resumeState=false",
            "-master.volumeSizeLimitMB=256",
            "-s3.port.iceberg=0",
            "-s3.port.lance=0",
            "-webdav=false",
            "-admin.ui=false",
            "-s3.config=/data/ids",
            f"-s3.port={PORTS['s3']}",
        ):
            self.assertIn(wanted, arguments)

    def test_seaweedfs_gets_no_environment_of_the_service(self) -> None:
        environment = seaweed.environment(Path("/data"), SECRETS)
        self.assertEqual(environment["HOME"], "/data")
        self.assertFalse([name for name in environment if name.startswith(("AWS_", "S3_"))])
        self.assertEqual(environment["WEED_JWT_FILER_SIGNING_KEY"], "signing")
        self.assertEqual(environment["GOMEMLIMIT"], "1GiB")

    def test_the_store_knows_a_single_identity(self) -> None:
        identities = seaweed.identity_file(SECRETS)["identities"]
        self.assertEqual(len(identities), 1)
        self.assertEqual(identities[0]["credentials"], [{"accessKey": "access", "secretKey": "secret"}])

    def test_socket_files_of_seaweedfs_are_named_by_port(self) -> None:
        names = seaweed.socket_names(PORTS)
        self.assertIn(f"seaweedfs-s3-{PORTS['s3']}.sock", names)
        self.assertIn(f"seaweedfs-filer-grpc-{PORTS['filer_grpc']}.sock", names)
        self.assertIn(f"seaweedfs-admin-grpc-{PORTS['admin'] + 10000}.sock", names)
        self.assertEqual(seaweed.socket_names({}), ())

    def test_log_levels_of_seaweedfs(self) -> None:
        self.assertEqual(seaweed.level("E1121 07:03:44.395404 s3api_server.go:403 Failed"), "warn")
        for why in (
            "reader_at.go:270 fetching chunk &{FileId:1,7d89ffcb13}: context canceled",
            "s.go:887 GetObjectHandler: failed to stream b/k from volume servers: "
            "write tcp 127.0.0.1:8333->127.0.0.1:5: write: connection reset by peer",
            "s.go:1181 streamFn failed after writing 9 bytes: write tcp [::1]:8333->[::1]:5: write: broken pipe",
            "u.go:281 chunked upload failed: read chunk at offset 0 (got 3 bytes): read tcp 127.0.0.1:8333->"
            "127.0.0.1:5: read: connection reset by peer (returning 0 partial chunks",
            "u.go:281 chunked upload failed: read chunk at offset 0 (got 3 bytes): unexpected EOF",
            "s.go:480 PutObjectPart: putToFiler failed with error code 30 for bucket=b, object=k, partNumber=1",
        ):
            self.assertEqual(seaweed.level(f"E1121 07:03:44.395404 {why}"), "debug")
        for why in ("s.go:1 putToFiler: no free volumes left", "s.go:1 write tcp: no route to host"):
            self.assertEqual(seaweed.level(f"E1121 07:03:44.395404 {why}"), "warn")
        self.assertEqual(seaweed.level("F1121 07:03:44.395404 x.go:1 gone"), "error")
        self.assertEqual(seaweed.level("I1121 07:03:44.395404 x.go:1 fine"), "debug")
        self.assertEqual(seaweed.level("Everything else"), "debug")


class Ports(TestCase):
    def test_remembered_ports_are_kept(self) -> None:
        self.assertEqual(sockets.choose(PORTS, lambda port: True, self._never), PORTS)

    def _never(self, lowest: int, highest: int) -> int:
        raise AssertionError("nothing had to be picked")

    def test_only_taken_ports_are_replaced(self) -> None:
        chosen = sockets.choose(PORTS, lambda port: port != PORTS["s3"], lambda low, high: 20000)
        self.assertEqual(chosen, {**PORTS, "s3": 20000})

    def test_the_admin_port_is_replaced_if_its_grpc_port_is_taken(self) -> None:
        taken = PORTS["admin"] + sockets.GRPC_OFFSET
        chosen = sockets.choose(PORTS, lambda port: port != taken, lambda low, high: 20000)
        self.assertEqual(chosen["admin"], 20000)

    @given(st.integers(), st.sets(st.integers(12000, 32000), max_size=50))
    def test_chosen_ports_are_distinct_and_free(self, seed: int, taken: set[int]) -> None:
        chosen = sockets.choose({}, lambda port: port not in taken, Random(seed).randrange)
        used = [*chosen.values(), chosen["admin"] + sockets.GRPC_OFFSET]
        self.assertEqual(len(set(used)), len(used))
        self.assertFalse(set(used) & taken)
        self.assertEqual(set(chosen), set(sockets.NAMES))

    def test_no_port_is_chosen_twice(self) -> None:
        # Each number is offered twice.
        numbers = iter([one for port in range(12000, 12100) for one in (port, port)])
        fresh = iter(range(15000, 15100))
        chosen = sockets.choose({}, lambda port: True, lambda low, high: next(numbers))
        self.assertEqual(len(set(chosen.values())), len(sockets.NAMES))
        doubled = sockets.choose(
            {"master": 12000, "s3": 12000}, lambda port: True, lambda low, high: next(fresh)
        )
        self.assertNotEqual(doubled["s3"], doubled["master"])

    def test_a_machine_without_free_ports_is_an_error(self) -> None:
        self.assertRaises(OSError, sockets.choose, {}, lambda port: False, lambda low, high: low)

    def test_a_port_that_is_listened_on_is_not_free(self) -> None:
        import socket

        with socket.socket() as listening:
            listening.bind(("127.0.0.1", 0))
            listening.listen()
            self.assertFalse(sockets.is_free(listening.getsockname()[1]))


class Files(TestCase):
    def test_secrets_are_written_with_private_permissions_from_the_start(self) -> None:
        path = temporary_directory(self) / "secrets.json"
        before = os.umask(0)
        try:
            files.write_json(path, {"a": 1})
            files.write_json(path, {"a": 2})
        finally:
            os.umask(before)
        self.assertEqual(path.stat().st_mode & 0o777, 0o600)
        self.assertEqual(files.read_json(path), {"a": 2})
        self.assertEqual([one.name for one in path.parent.iterdir()], ["secrets.json"])
        self.assertIsNone(files.read_json(path.with_name("none")))

    def test_secrets_are_made_once_and_not_shown(self) -> None:
        directory = temporary_directory(self)
        tokens = iter("abcdefghij")
        made = load_or_make(directory, lambda: next(tokens))
        self.assertEqual(load_or_make(directory, lambda: next(tokens)), made)
        self.assertEqual(made.superuser_password, "a")
        self.assertNotIn("a'", repr(made))

    def test_lost_secrets_of_an_existing_database_are_not_replaced(self) -> None:
        directory = temporary_directory(self)
        (directory / "postgres").mkdir()
        (directory / "postgres" / "PG_VERSION").write_text("18\n")
        fault = self.assertRaises(ValueError, load_or_make, directory, lambda: "x")
        self.assertIn("restore it", str(fault))

    def test_ports_are_saved_and_an_unreadable_file_is_ignored(self) -> None:
        directory = temporary_directory(self)
        (directory / "run").mkdir()
        self.assertEqual(load_ports(directory), {})
        save_ports(directory, PORTS)
        self.assertEqual(load_ports(directory), PORTS)
        (directory / "run" / "ports.json").write_text("{")
        self.assertEqual(load_ports(directory), {})
