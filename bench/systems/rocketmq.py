"""Apache RocketMQ's own brokers, as Maven Central has them: three copies under DLedger, or a master with a follower.

`scripts/setup-peers` fetches the jars. 4.9.8's broker is not there; 4.9.7's is.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.systems.brokers import MeasuredGroup, Setup, SystemKind
from jepsen.ports import free_port_rows, free_ports
from jepsen.processes import Process

VERSION_4: Final = "4.9.7"
VERSION_5: Final = "5.3.3"
NAMESRV_HEAP_MB: Final = 128
DIRECT_MB: Final = 512
OPENED: Final = (
    "--add-opens=java.base/java.lang=ALL-UNNAMED",
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens=java.base/jdk.internal.ref=ALL-UNNAMED",
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
)
"""RocketMQ's own start scripts open these for newer Javas."""

LOG_FILES: Final = (
    ("logback_broker.xml", ""),
    ("logback_namesrv.xml", ""),
    ("rmq.broker.logback.xml", "org.apache.rocketmq.logging."),
    ("rmq.client.logback.xml", "org.apache.rocketmq.logging."),
    ("rmq.namesrv.logback.xml", "org.apache.rocketmq.logging."),
)
LOGGING: Final = """<?xml version="1.0" encoding="UTF-8"?>
<configuration>
  <appender name="S" class="{package}ch.qos.logback.core.ConsoleAppender">
    <encoder><pattern>%d %p %logger - %m%n</pattern></encoder>
  </appender>
  <root level="WARN"><appender-ref ref="S"/></root>
</configuration>
"""
"""Only warnings, to the process's own log: what it writes for each message elsewhere is not measured."""

BROKER: Final = """brokerClusterName=BenchCluster
brokerName=broker-a
namesrvAddr={namesrv}
brokerIP1=127.0.0.1
brokerIP2=127.0.0.1
listenPort={port}
haListenPort={ha_port}
storePathRootDir={store}
storePathCommitLog={store}/commitlog
flushDiskType={flush}
sendMessageThreadPoolNums=16
waitTimeMillsInSendQueue=10000
osPageCacheBusyTimeOutMills=10000
"""
"""Threads as its documents advise for SYNC_FLUSH; with its own limits a busy broker would refuse instead of waiting."""


@dataclass(frozen=True, slots=True)
class Flavour:
    """One way to run it: its version, and whether the copies are those of DLedger or a master's."""

    version: str
    is_dledger: bool
    is_flushed: bool

    def copies(self, setup: Setup) -> int:
        """Return how many brokers there are: a master has one follower."""
        return setup.nodes if self.is_dledger else 2

    def flushes(self, setup: Setup) -> bool:
        """Return whether SYNC_FLUSH is set."""
        return self.is_flushed if setup.is_flushed is None else setup.is_flushed

    def describe(self, setup: Setup) -> str:
        """Say what an acknowledgement is worth."""
        flush = "SYNC_FLUSH" if self.flushes(setup) else "ASYNC_FLUSH: no fsync before the answer"
        mode = "DLedger" if self.is_dledger else "SYNC_MASTER and a follower"
        return f"RocketMQ {self.version}, {mode}, {self.copies(setup)} copies, {flush}"

    def lacking(self, setup: Setup) -> str | None:
        """Say what this machine lacks; None: nothing."""
        if shutil.which("java") is None:
            return "no Java on this machine"
        if not (setup.interop / f"rocketmq-{self.version}" / ".ready").exists():
            return f"RocketMQ {self.version} is not in {setup.interop} (make peers)"
        return None

    def make(self, folder: Path, setup: Setup) -> MeasuredGroup:
        """Make a group that is not started."""
        _write_logging(folder / "home")
        copies = self.copies(setup)
        # A broker listens at its port, two below and one above: 4.9.7 takes that for followers, whatever is configured.
        listen = free_port_rows(copies, length=3, step=1)
        namesrv_port, *log = free_ports(1 + copies)
        name_server = _name_server(folder, namesrv_port, setup, self.version)
        peers = ";".join(f"n{i}-127.0.0.1:{port}" for i, port in enumerate(log))
        brokers = []
        for i, port in enumerate(listen):
            text = BROKER.format(
                namesrv=name_server.address,
                port=port,
                ha_port=port + 1,
                store=folder / f"n{i}",
                flush="SYNC_FLUSH" if self.flushes(setup) else "ASYNC_FLUSH",
            )
            text += self._role(i, peers, listen[0] + 1)
            conf = folder / f"n{i}.conf"
            conf.write_text(text)
            command = _java(folder, setup, self.version, heap_mb=setup.heap_mb)
            command += ["org.apache.rocketmq.broker.BrokerStartup", "-c", str(conf)]
            brokers.append(Process(f"n{i}", command, log=folder / f"n{i}.log", port=port))
        return MeasuredGroup(folder, name_server, brokers)

    def _role(self, number: int, peers: str, master_ha_port: int) -> str:
        """Return the settings that tell one broker from the others."""
        if self.is_dledger:
            return (
                "enableDLegerCommitLog=true\ndLegerGroup=broker-a\n"
                f"dLegerPeers={peers}\ndLegerSelfId=n{number}\n"
            )
        if number == 0:
            return "brokerId=0\nbrokerRole=SYNC_MASTER\n"
        return f"brokerId={number}\nbrokerRole=SLAVE\nhaMasterAddress=127.0.0.1:{master_ha_port}\n"


def _write_logging(home: Path) -> None:
    conf = home / "conf"
    conf.mkdir(parents=True)
    for name, package in LOG_FILES:
        (conf / name).write_text(LOGGING.format(package=package))


def _java(folder: Path, setup: Setup, version: str, *, heap_mb: int) -> list[str]:
    """Return a command but for the class; the heap has one size, so that memory does not grow while it is measured."""
    return [
        "java",
        f"-Xms{heap_mb}m",
        f"-Xmx{heap_mb}m",
        f"-XX:MaxDirectMemorySize={DIRECT_MB}m",
        "-XX:+UseG1GC",
        *OPENED,
        f"-Drocketmq.home.dir={folder / 'home'}",
        f"-Duser.home={folder}",
        "-cp",
        f"{setup.interop.absolute() / f'rocketmq-{version}' / 'jars'}/*",
    ]


def _name_server(folder: Path, port: int, setup: Setup, version: str) -> Process:
    conf = folder / "namesrv.conf"
    conf.write_text(f"listenPort={port}\n")
    command = _java(folder, setup, version, heap_mb=NAMESRV_HEAP_MB)
    command += ["org.apache.rocketmq.namesrv.NamesrvStartup", "-c", str(conf)]
    return Process("namesrv", command, log=folder / "namesrv.log", port=port)


def _kind(name: str, flavour: Flavour) -> SystemKind:
    return SystemKind(
        name=name,
        describe=flavour.describe,
        lacking=flavour.lacking,
        make=flavour.make,
        fails_over=flavour.is_dledger,
    )


KINDS: Final = (
    _kind("rocketmq-dledger", Flavour(VERSION_4, is_dledger=True, is_flushed=False)),
    _kind("rocketmq-sync", Flavour(VERSION_4, is_dledger=False, is_flushed=True)),
    _kind("rocketmq-dledger-flush", Flavour(VERSION_4, is_dledger=True, is_flushed=True)),
    _kind("rocketmq5-dledger", Flavour(VERSION_5, is_dledger=True, is_flushed=False)),
    _kind("rocketmq5-sync", Flavour(VERSION_5, is_dledger=False, is_flushed=True)),
)
