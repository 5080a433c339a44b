"""The table of broker.conf's keys has every key of RocketMQ's own classes, and no other one."""

from __future__ import annotations

import re
import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest

from broker.namesrv.conf_keys import NAME_SERVER_KEYS
from broker.server.settings.table import BROKER_KEYS
from broker.settings.key_table import KeyTable
from broker.settings.keys import ValueKind

ROOT = Path(__file__).resolve().parents[2]
CLASSES = {
    "org.apache.rocketmq.common.BrokerConfig": "rocketmq-common",
    "org.apache.rocketmq.store.config.MessageStoreConfig": "rocketmq-store",
    "org.apache.rocketmq.remoting.netty.NettyServerConfig": "rocketmq-remoting",
    "org.apache.rocketmq.remoting.netty.NettyClientConfig": "rocketmq-remoting",
}
NAME_SERVER_CLASSES = {
    "org.apache.rocketmq.common.namesrv.NamesrvConfig": "rocketmq-common",
    "org.apache.rocketmq.remoting.netty.NettyServerConfig": "rocketmq-remoting",
    "org.apache.rocketmq.remoting.netty.NettyClientConfig": "rocketmq-remoting",
}
CLASSES_OF_5 = {
    "org.apache.rocketmq.common.BrokerIdentity": "rocketmq-common",
    "org.apache.rocketmq.auth.config.AuthConfig": "rocketmq-auth",
}
NOT_SETTABLE = {
    "isBrokerContainer",
    "isEnableBatchPush",
    "isInBrokerContainer",
    "isScanAvailableNameSrv",
}
"""Fields whose setters have the name without `is`, which is the key, or that have none."""

TLS_CLASS = "org.apache.rocketmq.remoting.netty.TlsSystemConfig"
"""Its keys are properties of the JVM, or stand in a file of their own; ours take them from broker.conf, too."""
TLS_KEY = re.compile(r"String \w+ = \"(tls\.[\w.]+)\";")

SETTER = re.compile(r"public .* set(\w+)\(([\w.]+)\)")
FIELD = re.compile(r"  (?:private|protected|public)? ?(?:volatile )?([\w.]+) (\w+);")
KINDS = {
    "int": ValueKind.NUMBER,
    "long": ValueKind.NUMBER,
    "double": ValueKind.FRACTION,
    "boolean": ValueKind.FLAG,
}


def keys_of(release: str, classes: dict[str, str]) -> dict[str, ValueKind]:
    """The keys of a release: what has a setter, as RocketMQ itself reads a file, and what is a field."""
    if shutil.which("javap") is None:
        pytest.skip("no javap on this machine")
    told = "".join(javap_output(release)[name] for name in classes)
    found: dict[str, ValueKind] = {}
    for line in told.splitlines():
        if field := FIELD.fullmatch(line):
            found[field[2]] = KINDS.get(field[1], ValueKind.TEXT)
    for setter in SETTER.finditer(told):
        name = setter[1][:1].lower() + setter[1][1:]
        found.setdefault(name, KINDS.get(setter[2], ValueKind.TEXT))
    return {name: kind for name, kind in found.items() if name not in NOT_SETTABLE}


@cache
def javap_output(release: str) -> dict[str, str]:
    """What javap tells of each of the classes of a release; one run for all, since each starts a virtual machine."""
    wanted = CLASSES | NAME_SERVER_CLASSES | {TLS_CLASS: "rocketmq-remoting"}
    if release.startswith("5"):
        wanted |= CLASSES_OF_5
    names = set(wanted.values())
    folders = (ROOT / f".interop/java-{release}/jars", ROOT / f".interop/server-{release}")
    jars = [jar for name in names for folder in folders for jar in folder.glob(f"{name}-*.jar")]
    if len(jars) != len(names):
        pytest.skip(f"no jars of RocketMQ {release}: make interop fetches them")
    told = subprocess.run(
        ["javap", "-cp", ":".join(map(str, sorted(jars))), "-p", "-constants", *wanted],
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    ).stdout
    _, *parts = told.split("Compiled from ")  # in the order in which they were asked for
    return dict(zip(wanted, parts, strict=True))


def tls_keys_of(release: str) -> set[str]:
    """The keys of TLS of a release."""
    return set(TLS_KEY.findall(javap_output(release)[TLS_CLASS]))


@pytest.mark.slow
@pytest.mark.parametrize(("release", "default"), [("4.9.8", "in_49"), ("5.3.3", "in_53")])
def test_the_table_has_every_key_of_a_release_and_no_other_one(release: str, default: str) -> None:
    found = keys_of(release, CLASSES | (CLASSES_OF_5 if release.startswith("5") else {}))
    assert len(found) > 150
    compare(found, tls_keys_of(release), BROKER_KEYS, default)


@pytest.mark.slow
@pytest.mark.parametrize(("release", "default"), [("4.9.8", "in_49"), ("5.3.3", "in_53")])
def test_the_name_servers_table_too(release: str, default: str) -> None:
    found = keys_of(release, NAME_SERVER_CLASSES)
    assert len(found) > 30
    compare(found, tls_keys_of(release), NAME_SERVER_KEYS, default)


def compare(found: dict[str, ValueKind], tls: set[str], keys: KeyTable, default: str) -> None:
    """The table has these keys and no other ones of a release, each with its form."""
    table = {key.name: key for key in keys.keys if getattr(key, default) is not None}
    assert (set(found) | tls) - set(table) == set(), "keys that the table lacks"
    assert set(table) - set(found) - tls == set(), "keys that the release has not"
    assert {name for name in found if table[name].kind is not found[name]} == set()
