"""Certificates of a run: an authority that nobody else knows, and what it signs for the addresses of the group.

They hold for a day. The authority's key is forgotten as soon as the certificate is signed.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from dledger_mq.net.tls_contexts import TlsFiles

_VALID: timedelta = timedelta(days=1)


def write_certificates(folder: Path, hosts: Iterable[str]) -> TlsFiles:
    """Write one certificate for all members and clients of a run, its key, and who signed it.

    Args:
        folder: there is one; the files are in it, the key for its owner alone.
        hosts: addresses (IPv4 or IPv6) at which the group is reached.
    """
    authority_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    authority = _builder("authority of a run", "authority of a run", authority_key.public_key())
    authority = authority.add_extension(
        x509.BasicConstraints(ca=True, path_length=0), critical=True
    )
    names = [x509.IPAddress(ipaddress.ip_address(host)) for host in hosts]
    leaf = _builder("member of a run", "authority of a run", key.public_key())
    leaf = leaf.add_extension(x509.SubjectAlternativeName(names), critical=False)
    found = TlsFiles(
        certificate=str(folder / "cert.pem"),
        key=str(folder / "key.pem"),
        trust=str(folder / "ca.pem"),
    )
    key_file = Path(found.key)
    key_file.touch(mode=0o600)
    key_file.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    for path, builder in ((found.certificate, leaf), (found.trust, authority)):
        signed = builder.sign(authority_key, hashes.SHA256())
        Path(path).write_bytes(signed.public_bytes(Encoding.PEM))
    return found


def _builder(subject: str, issuer: str, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(_named(subject))
        .issuer_name(_named(issuer))
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _VALID)  # a nemesis may set clocks back
        .not_valid_after(now + _VALID)
    )


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
