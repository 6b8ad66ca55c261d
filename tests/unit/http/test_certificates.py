"""Certificates of TLS ports: a renewed one is used after a reload, and the old one stays if the new one is
unusable."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

from twisted.internet import reactor
from twisted.internet.protocol import Factory
from twisted.protocols.tls import TLSMemoryBIOFactory
from twisted.trial.unittest import SynchronousTestCase

from project_service.certificates import Certificates
from project_service.lifecycle import start
from project_service.network import CannotListen, cannot_listen, endpoint_from
from project_service.workers.worker import adopt
from tests.certificates import Issued, issue
from tests.live.logged import errors_logged
from tests.temporary import temporary_directory


class Renewing(SynchronousTestCase):
    def setUp(self) -> None:
        self.errors = errors_logged(self)
        self.folder = temporary_directory(self)
        self.first = issue("localhost")
        self.certificate, self.key = self.first.written(self.folder)
        self.endpoint = f"ssl:443:privateKey={self.key}:certKey={self.certificate}"
        self.certificates = Certificates()
        self.shown: Any = endpoint_from(reactor, self.endpoint, self.certificates)._sslContextFactory

    def written(self, issued: Issued, *chain: Issued) -> None:
        issued.written(self.folder)
        self.certificate.write_bytes(issued.pem + b"".join(one.pem for one in chain))

    def why_not(self) -> str:
        """The reason in the log why a certificate was not used."""
        before = self.shown.getContext()
        self.assertEqual(self.certificates.renew(), [])
        self.assertIs(self.shown.getContext(), before)
        (event,) = self.errors.flush("the one before goes on")
        self.assertEqual(event["port"], f"ssl:443:certKey={self.certificate}")
        return str(event["why"])

    def test_twisted_accepts_the_context_factory_without_a_warning(self) -> None:
        TLSMemoryBIOFactory(self.shown, False, Factory())
        warned = [
            one["message"] for one in self.flushWarnings() if "does not explicitly provide" in one["message"]
        ]
        self.assertEqual(warned, [])

    def test_a_new_certificate_is_used_for_new_connections(self) -> None:
        before = self.shown.getContext()
        issued = issue("localhost")
        self.written(issued)
        until = issued.certificate.not_valid_after_utc.strftime("%Y-%m-%d %H:%M UTC")
        self.assertEqual(
            self.certificates.renew(), [f"ssl:443:certKey={self.certificate}: good until {until}"]
        )
        self.assertIsNot(self.shown.getContext(), before)
        self.assertIs(self.shown.getContext(), self.shown.getContext())

    def test_an_unchanged_certificate_keeps_its_context(self) -> None:
        """A reload for other reasons must not cost clients their session tickets."""
        before = self.shown.getContext()
        self.assertEqual(self.certificates.renew(), [])
        self.assertIs(self.shown.getContext(), before)

    def test_a_new_chain_alone_is_taken_over(self) -> None:
        self.written(self.first, issue("Between"))
        self.assertEqual(len(self.certificates.renew()), 1)
        self.assertEqual(self.certificates.renew(), [])

    def test_unusable_or_missing_files_keep_the_old_certificate(self) -> None:
        self.certificate.write_bytes(issue("localhost").pem)
        self.assertEqual(self.why_not(), "the private key is not the certificate's")
        for held in (b"", b"-----BEGIN CERTIFICATE-----\n", self.first.pem[:200]):
            self.certificate.write_bytes(held)
            self.assertEqual(self.why_not(), "its files hold no certificate with its private key in PEM")
        self.written(self.first, issue("Between"))
        self.certificate.write_bytes(self.certificate.read_bytes().replace(b"\nM", b"\n!"))
        self.assertEqual(self.why_not(), "its files hold no certificate with its private key in PEM")
        self.key.unlink()
        self.assertEqual(self.why_not(), f"[Errno 2] No such file or directory: '{self.key}'")
        self.written(issue("localhost"))
        self.assertEqual(len(self.certificates.renew()), 1)

    def test_one_unusable_certificate_does_not_keep_others_from_being_renewed(self) -> None:
        other = self.folder / "other"
        other.mkdir()
        certificate, key = self.first.written(other)
        endpoint_from(reactor, f"haproxy:ssl:444:privateKey={key}:certKey={certificate}", self.certificates)
        self.key.unlink()
        issue("localhost").written(other)
        (line,) = self.certificates.renew()
        self.assertIn(f"ssl:444:certKey={Path(certificate)}: good until", line)
        self.assertEqual(len(self.errors.flush("the one before goes on")), 1)


class Adopting(SynchronousTestCase):
    def test_a_worker_with_an_unusable_certificate_says_so(self) -> None:
        folder = temporary_directory(self)
        certificate, key = issue("localhost").written(folder)
        certificate.write_bytes(b"")
        with socket.socket() as port:
            bind: Any = adopt(
                reactor, [f"ssl:443:privateKey={key}:certKey={certificate}"], port.fileno(), Certificates()
            )
            failed = self.failureResultOf(start(bind(Factory())), CannotListen)
        self.assertEqual(
            failed.getErrorMessage(),
            f"cannot listen on ssl:443:certKey={certificate}: "
            "its files hold no certificate with its private key in PEM",
        )

    def test_a_file_that_is_missing_is_named_by_its_argument(self) -> None:
        folder = temporary_directory(self)
        for missing in ("privateKey", "certKey"):
            files = dict(zip(("certKey", "privateKey"), issue("localhost").written(folder), strict=True))
            files[missing].unlink()
            files = {name: Path(os.path.relpath(path)) for name, path in files.items()}
            endpoint = "ssl:443:" + ":".join(f"{name}={path}" for name, path in files.items())
            fault = self.assertRaises(OSError, endpoint_from, reactor, endpoint)
            self.assertEqual(
                str(cannot_listen(endpoint, fault)),
                f"cannot listen on ssl:443:certKey={files['certKey']}: No such file or directory ({missing})",
            )
