"""Apache RocketMQ's own proxy for gRPC clients, in front of whatever brokers a name server knows.

`scripts/setup-interop` fetches the jars from Maven Central. It listens on all addresses and has no setting for that, so
it runs in a network of its own only (`jepsen/private_network.py`), with everything that it talks to.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from bench.systems.rocketmq import LOGGING
from jepsen.ports import free_ports
from jepsen.private_network import lacking_private_network
from jepsen.processes import Process

VERSION: Final = "5.3.3"
HEAP_MB: Final = 512
_LOG_FILES: Final = {
    "rmq.proxy.logback.xml": "",
    "rmq.client.logback.xml": "org.apache.rocketmq.logging.",
}


def jars(interop: Path) -> Path:
    """Return the folder of its jars."""
    return interop.absolute() / f"proxy-{VERSION}" / "jars"


def lacking_apache_proxy(interop: Path) -> str | None:
    """Say what this machine lacks for it; None: nothing."""
    if shutil.which("java") is None:
        return "no Java on this machine"
    if not (interop / f"proxy-{VERSION}" / ".ready").exists():
        return f"RocketMQ's proxy {VERSION} is not in {interop} (make interop)"
    return lacking_private_network()


def apache_proxy(
    folder: Path,
    namesrv: str,
    *,
    cluster: str,
    interop: Path,
    heap_mb: int = HEAP_MB,
    options: Sequence[str] = (),
    more_settings: Mapping[str, Any] = MappingProxyType({}),
) -> Process:
    """Make one in cluster mode that is not started; it writes no other log than its output.

    Args:
        folder: for its settings.
        namesrv: the name server as clients take it.
        cluster: of the brokers.
        interop: the folder with what `make interop` has fetched.
        heap_mb: at most.
        options: of Java, more than these.
        more_settings: of the proxy, in `rmq-proxy.json`.
    """
    port, remoting_port = free_ports(2)
    conf = folder / "conf"
    conf.mkdir(parents=True)
    settings = {
        "proxyMode": "CLUSTER",
        "rocketMQClusterName": cluster,
        "namesrvAddr": namesrv,
        "grpcServerPort": port,
        "remotingListenPort": remoting_port,
        "metricsExporterType": "DISABLE",
        "enablePrintJstack": False,
        **more_settings,
    }
    (conf / "rmq-proxy.json").write_text(json.dumps(settings, indent=1))
    for name, package in _LOG_FILES.items():
        (conf / name).write_text(LOGGING.format(package=package))
    command = [
        "java",
        f"-Xmx{heap_mb}m",
        *options,
        f"-Drocketmq.home.dir={folder}",
        f"-Duser.home={folder}",
        *("-cp", f"{jars(interop)}/*"),
        "org.apache.rocketmq.proxy.ProxyStartup",
    ]
    proxy = Process("apache", command, log=folder / "proxy.log", port=port)
    proxy.environment = {"RMQ_PROXY_HOME": str(folder), "ROCKETMQ_HOME": str(folder)}
    return proxy
