"""Certificates for tests of TLS, each for localhost and 127.0.0.1."""

from __future__ import annotations

import datetime
from ipaddress import IPv4Address
from pathlib import Path

from attrs import frozen
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

NAMES = [x509.DNSName("localhost"), x509.IPAddress(IPv4Address("127.0.0.1"))]


@frozen
class Issued:
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @property
    def pem(self) -> bytes:
        return self.certificate.public_bytes(Encoding.PEM)

    @property
    def key_pem(self) -> bytes:
        return self.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())

    def written(self, folder: Path) -> tuple[Path, Path]:
        """The files of certificate and key."""
        certificate, key = folder / "certificate.pem", folder / "key.pem"
        certificate.write_bytes(self.pem)
        key.write_bytes(self.key_pem)
        return certificate, key


def issue(name: str, issuer: Issued | None = None, authority: bool = True) -> Issued:
    """A certificate by ``issuer``, or by itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    now = datetime.datetime.now(datetime.UTC)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer.certificate.subject if issuer else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName(NAMES), critical=False)
    )
    return Issued(builder.sign(issuer.key if issuer else key, hashes.SHA256()), key)
