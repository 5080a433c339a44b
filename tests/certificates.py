"""Certificates for tests: an authority, what it signs for 127.0.0.1, and a stranger's. Made once for a process."""

from __future__ import annotations

import ssl
from functools import cache
from pathlib import Path
from typing import Final

import trustme

from dledger_mq.net.tls_contexts import TlsFiles, client_context, server_context

HOST: Final = "127.0.0.1"


@cache
def authority(name: str = "ours") -> trustme.CA:
    """Who signs; another name is another authority."""
    return trustme.CA(organization_name=name)


@cache
def issued(name: str = "ours", host: str = HOST) -> trustme.LeafCert:
    """A certificate for a host, with its key."""
    return authority(name).issue_cert(host)


def write_files(folder: Path, name: str = "ours", host: str = HOST) -> TlsFiles:
    """A certificate, its key and who signed it, as files that only their owner can read."""
    folder.mkdir(parents=True, exist_ok=True)
    files = TlsFiles(
        certificate=str(folder / "cert.pem"),
        key=str(folder / "key.pem"),
        trust=str(folder / "ca.pem"),
    )
    leaf = issued(name, host)
    Path(files.certificate).write_bytes(b"".join(each.bytes() for each in leaf.cert_chain_pems))
    Path(files.key).write_bytes(leaf.private_key_pem.bytes())
    Path(files.key).chmod(0o600)
    authority(name).cert_pem.write_to_path(files.trust)
    return files


def server_side(folder: Path, auth: ssl.VerifyMode = ssl.CERT_NONE) -> ssl.SSLContext:
    """What a server of ours offers."""
    return server_context(write_files(folder), auth)


def client_side(folder: Path, name: str = "ours", *, shows: bool = False) -> ssl.SSLContext:
    """What a client offers that believes an authority, and may show a certificate of it."""
    files = write_files(folder, name)
    return client_context(files if shows else TlsFiles(trust=files.trust))
