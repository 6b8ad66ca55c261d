"""What ``check`` reports about the certificates of the configured ports."""

from __future__ import annotations

from datetime import datetime, timedelta

from attrs import evolve
from cryptography.x509.oid import NameOID
from twisted.internet import reactor
from twisted.internet.endpoints import quoteStringArgument
from twisted.trial.unittest import SynchronousTestCase

from project_service.cli.check import certificate_of, secured
from project_service.cli.invocation import Failed
from project_service.network import endpoint_from
from project_service.settings.model import Server, Settings
from tests.certificates import Issued, issue
from tests.temporary import temporary_directory


class Files(SynchronousTestCase):
    def setUp(self) -> None:
        # A colon has to be escaped in an endpoint.
        self.folder = temporary_directory(self) / "a:b"
        self.folder.mkdir()
        self.issued = issue("localhost")
        # Not the time at which the module was read, long before in a long run.
        self.now = self.issued.certificate.not_valid_before_utc + timedelta(hours=1)

    def endpoint(self, certificates: bytes, key: bytes) -> str:
        paths = {"certKey": self.folder / "cert.pem", "privateKey": self.folder / "key.pem"}
        paths["certKey"].write_bytes(certificates)
        paths["privateKey"].write_bytes(key)
        return "ssl:0" + "".join(f":{name}={quoteStringArgument(str(path))}" for name, path in paths.items())


class Certificates(Files):
    def why_not(self, endpoint: str, now: datetime | None = None) -> str:
        with self.assertRaises(Failed) as caught:
            certificate_of(reactor, endpoint, now or self.now)
        return str(caught.exception)

    def test_the_end_of_validity_is_shown_and_an_expired_certificate_refused(self) -> None:
        endpoint = self.endpoint(self.issued.pem, self.issued.key_pem)
        day = self.issued.certificate.not_valid_after_utc.strftime("%Y-%m-%d %H:%M UTC")
        for one in (endpoint, f"haproxy:{endpoint}"):
            self.assertEqual(certificate_of(reactor, one, self.now), f"good until {day}")
        self.assertIn(f"to {day} only", self.why_not(endpoint, self.now + timedelta(days=2)))
        self.assertIn(f"to {day} only", self.why_not(endpoint, self.now - timedelta(days=2)))

    def test_unusable_files_are_reported(self) -> None:
        mixed = self.endpoint(self.issued.pem, issue("localhost").key_pem)
        self.assertEqual(self.why_not(mixed), "the private key is not the certificate's")
        nothing = "its files hold no certificate with its private key in PEM"
        self.assertEqual(self.why_not(self.endpoint(b"", b"")), nothing)
        self.assertEqual(self.why_not(self.endpoint(self.issued.pem, b"")), nothing)
        absent = f"ssl:0:privateKey={self.folder.parent / 'none'}"
        self.assertRaises(FileNotFoundError, certificate_of, reactor, absent, self.now)

    def test_which_endpoints_have_a_certificate(self) -> None:
        plain = ("tcp:80", "unix:/run/ssl:1", "haproxy:tcp:81")
        server = evolve(Server(), listen=("ssl:443", *plain, "haproxy:ssl:444"), admin_listen="ssl:9090")
        self.assertEqual(
            secured(evolve(Settings(), server=server)), ["ssl:443", "haproxy:ssl:444", "ssl:9090"]
        )
        self.assertEqual(secured(Settings()), [])


class Chains(Files):
    def sent(self, endpoint: str) -> list[str]:
        """The names in the certificates that are sent after the first one."""
        options = endpoint_from(reactor, endpoint)._sslContextFactory
        subjects = (one.to_cryptography().subject for one in options.extraCertChain)
        return [str(name.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value) for name in subjects]

    def test_certificates_behind_the_first_are_sent_as_its_chain(self) -> None:
        between = issue("Between")
        server: Issued = issue("localhost", between, authority=False)
        self.assertEqual(self.sent(self.endpoint(server.pem, server.key_pem)), [])
        self.assertEqual(self.sent(self.endpoint(server.pem + between.pem, server.key_pem)), ["Between"])
        # Key and certificates may stand in one file.
        together = self.folder.parent / "all.pem"
        together.write_bytes(server.key_pem + server.pem + between.pem + self.issued.pem)
        self.assertEqual(self.sent(f"ssl:0:privateKey={together}"), ["Between", "localhost"])
        # A chain that is named replaces it.
        chain = self.folder.parent / "chain.pem"
        chain.write_bytes(self.issued.pem)
        named = f"{self.endpoint(server.pem + between.pem, server.key_pem)}:extraCertChain={chain}"
        self.assertEqual(self.sent(named), ["localhost"])
