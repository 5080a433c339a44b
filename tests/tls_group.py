"""A real group and its name server that take TLS, as tests of several kinds use it."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from pathlib import Path

from dledger_mq import ClientError, Message, make_tls_context
from dledger_mq.blocking import Producer, PullConsumer
from dledger_mq.net.tls_contexts import TlsFiles
from jepsen.processes import SMALL_SEGMENTS, Group, poll
from tests.certificates import write_files

PATIENCE_S = 180.0


def peer_settings(files: TlsFiles, mode: str) -> str:
    """The keys of TLS between members, who show what the port shows."""
    return f"tls.peer.mode={mode}\ntls.peer.trustCertPath={files.trust}\n"


def settings(files: TlsFiles, mode: str) -> str:
    """The keys of TLS of a node that also speaks it."""
    lines = [
        f"tls.server.mode={mode}",
        f"tls.server.certPath={files.certificate}",
        f"tls.server.keyPath={files.key}",
        "tls.enable=true",
        f"tls.client.trustCertPath={files.trust}",
    ]
    return "\n".join(lines) + "\n"


class TlsGroup:
    """A group of three and a name server that take TLS."""

    def __init__(self, folder: Path, mode: str, *, is_mutual: bool = False) -> None:
        files = self.files = write_files(folder / "tls")
        keys = settings(files, mode)
        if is_mutual:
            keys += (
                f"tls.server.need.client.auth=require\ntls.server.trustCertPath={files.trust}\n"
                f"tls.client.certPath={files.certificate}\ntls.client.keyPath={files.key}\n"
            )
        conf = folder / "namesrv.conf"
        conf.write_text(keys)
        if mode == "enforcing":
            keys += peer_settings(files, mode)
        self.processes = Group(folder, settings=SMALL_SEGMENTS + keys)
        for server in self.processes.name_servers:
            server.command += ["-c", str(conf)]
        self.without_certificate = make_tls_context(trust=files.trust)
        self.tls = make_tls_context(trust=files.trust, certificate=files.certificate, key=files.key)

    def sends(self, tls: ssl.SSLContext | None, timeout_s: float = 20.0) -> bool:
        """Whether a client gets a message stored, and reads it again."""
        try:
            with Producer(self.processes.namesrv, "p", tls=tls, timeout_s=timeout_s) as producer:
                sent = producer.send(Message("T", b"secret"))
            with PullConsumer(
                self.processes.namesrv, "c", tls=tls, timeout_s=timeout_s
            ) as consumer:
                found = consumer.pull(sent.queue, sent.queue_offset)
        except ClientError:
            return False
        return [message.body for message in found.messages] == [b"secret"]

    def logs(self) -> str:
        return "".join(each.log.read_text() for each in self.processes.processes())


def running(folder: Path, mode: str, *, is_mutual: bool = False) -> Iterator[TlsGroup]:
    """Start one, and stop it in the end."""
    group = TlsGroup(folder, mode, is_mutual=is_mutual)
    with group.processes as processes:
        processes.start()
        processes.wait_listening()
        assert poll(lambda: group.sends(group.tls), PATIENCE_S), group.logs()[-3000:]
        yield group
