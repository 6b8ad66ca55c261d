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
        """Writes the certificate and its key to files and returns their paths."""
        certificate, key = folder / "certificate.pem", folder / "key.pem"
        certificate.write_bytes(self.pem)
        key.write_bytes(self.key_pem)
        return certificate, key


def issue(name: str, issuer: Issued | None = None, authority: bool = True) -> Issued:
    """A certificate, issued by ``issuer`` or by itself. It has all extensions that strict clients require (RFC 5280
    section 4.2.1), as Python does from 3.13 on.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    now = datetime.datetime.now(datetime.UTC)
    issuing = issuer.key if issuer else key
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
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(issuing.public_key()), critical=False
        )
        .add_extension(_usage(authority), critical=True)
    )
    return Issued(builder.sign(issuing, hashes.SHA256()), key)


def _usage(authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=authority,
        crl_sign=authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
