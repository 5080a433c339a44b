"""The file of `dledger-node`: which machines there are, which groups they share. Pure: text in, values out.

One file serves all machines. Each machine runs a name server and one member of every group; the groups know
nothing of each other, and each is led from another machine as long as that machine is there. Ports are counted from
the first group's, so that no two processes of a machine want the same one. What a broker.conf can say stands in
`[broker]`, for all groups, or in `[group.NAME]`, for one; what follows from the file itself cannot be said there.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec

from broker.node.values import (
    TAKEN_NAMES,
    check_host,
    check_name,
    check_tables,
    explain,
)
from broker.settings.tls import CONFIG_FILE
from dledger import ConfigError
from dledger.config import is_loopback

MACHINES_MAX: Final = 7
GROUPS_MAX: Final = 26
PORT_STEP: Final = 10
"""Between the ports of one group and the next: a broker may also serve the port two below its own."""

DECIDED_KEYS: Final = {
    "dLegerGroup": "it is the group's name",
    "brokerName": "it is the group's name",
    "dLegerSelfId": "it follows from the machine's place in [machines]",
    "dLegerPeers": "they are the machines",
    "namesrvAddr": "they are the machines",
    "storePathRootDir": "it lies under `store`",
    "listenPort": "it follows from [ports]",
    "bindAddress": "it is the machine's address",
    "brokerIP1": "it is the machine's address",
    "brokerClusterName": "set `cluster`",
    "secret": "set `secret_file`",
    CONFIG_FILE: "set `tls_config_file`",
}
"""Keys of broker.conf that the file's own settings decide, and by what."""

NAME_SERVER: Final = "namesrv"

Port = Annotated[int, msgspec.Meta(ge=1, le=65_535)]
Text = Annotated[str, msgspec.Meta(min_length=1)]
Setting = str | bool | int


class Ports(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The first ports on every machine.

    Attributes:
        namesrv: where clients and brokers ask for routes.
        broker: clients of the first group; the next group's is PORT_STEP above.
        member: members of the first group among each other; the next group's is PORT_STEP above.
        metrics: figures of the name server; those of the first group are one above, and so on. None: none are given.
    """

    namesrv: Port = 9876
    broker: Port = 10_911
    member: Port = 20_911
    metrics: Port | None = None


class NodeFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The settings of node.toml, checked.

    Attributes:
        machines: name and address of each, in the order that gives their members' ids (n0, n1, ...) and the
            groups their preferred leaders: the first group's is the first machine. Groups begin with these.
        joined: the same of machines that came later: their members have the next ids, and wait to be added.
        left: machines that are none any more; they keep their places, and nothing runs there.
        store: folder for all data and logs of a machine, which are in a folder of its name below.
        groups: names of the groups; by default as many as there are machines: broker-a, broker-b, ...
        secret_file: its first line is the secret that members and name servers show each other.
        tls_config_file: keys of TLS, for all processes of a machine.
        log_level: of the processes; empty: their own.
        log_format: of the processes, `text` or `json`.
        log_folder: where they log, each into a file that is rotated; None: what they print goes into `logs` of the
            machine's folder.
        broker: settings of broker.conf for all groups.
        group: settings of broker.conf by group; they win.
    """

    machines: dict[str, str]
    cluster: Text = "DefaultCluster"
    store: Text = "data"
    groups: tuple[str, ...] = ()
    joined: dict[str, str] = {}
    left: tuple[str, ...] = ()
    secret_file: str | None = None
    tls_config_file: str | None = None
    log_level: Literal["", "debug", "info", "warning", "error"] = ""
    log_format: Literal["text", "json"] = "text"
    log_folder: str | None = None
    ports: Ports = Ports()
    broker: dict[str, Setting] = {}
    group: dict[str, dict[str, Setting]] = {}

    @property
    def every_machine(self) -> dict[str, str]:
        """Name and address of all that ever were, in the order that gives their members' ids."""
        return {**self.machines, **self.joined}

    @property
    def present(self) -> dict[str, str]:
        """Name and address of those that are there."""
        every = self.every_machine
        return {name: every[name] for name in every if name not in self.left}

    def settings_of(self, group: str) -> dict[str, str]:
        """Return the settings of broker.conf that the file gives to a group."""
        both = {**self.broker, **self.group.get(group, {})}
        return {key: _as_text(value) for key, value in both.items()}


def read_node_file(text: str, *, folder: Path) -> NodeFile:
    """Read node.toml.

    Args:
        text: its content.
        folder: where it lies; relative paths in it begin there.

    Raises:
        ConfigError: it is no TOML, or a setting is unknown, missing, wrong, or contradicts another one.
    """
    try:
        values = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # also for a number of thousands of digits
        raise ConfigError(f"this is not TOML: {error}") from error
    try:
        check_tables(values)
        file = msgspec.convert(values, NodeFile)
    except msgspec.ValidationError as error:
        raise ConfigError(explain(error)) from error
    _check_machines(file)
    if not file.groups:
        names = tuple(f"broker-{chr(ord('a') + place)}" for place in range(len(file.machines)))
        file = msgspec.structs.replace(file, groups=names)
    _check_groups(file)
    _check_ports(file)
    return msgspec.structs.replace(
        file,
        store=str(folder / file.store),
        secret_file=_placed(folder, file.secret_file),
        tls_config_file=_placed(folder, file.tls_config_file),
        log_folder=_placed(folder, file.log_folder),
    )


def _placed(folder: Path, path: str | None) -> str | None:
    """Return where a path begins that stands in the file of a folder."""
    return str(folder / path) if path else None


def choose_machine(file: NodeFile, wanted: str | None, host_name: str) -> str:
    """Return which of the machines this is: the one that is wanted, else the one of the host's name.

    Raises:
        ConfigError: it is not among the machines.
    """
    name = wanted or host_name
    if name in file.every_machine:
        return name
    known = ", ".join(file.every_machine)
    if wanted:
        raise ConfigError(f"--machine {wanted} is not among the machines {known}")
    raise ConfigError(
        f"this host is called {host_name}, which is not among the machines {known}: say which one it is with --machine"
    )


def _check_machines(file: NodeFile) -> None:
    """Raise ConfigError for a wrong number, a bad name or host, or two machines of one address: their ports clash."""
    if len(file.machines) % 2 == 0 or len(file.machines) > MACHINES_MAX:
        raise ConfigError(
            f"[machines] has {len(file.machines)}: a group needs a majority of them, so give 1, 3, 5 or "
            f"{MACHINES_MAX}; machines that come later, to groups that exist, stand in [joined] (docs/node.md)"
        )
    for name, host in (*file.machines.items(), *file.joined.items()):
        check_name("machine", name)
        check_host(name, host)
    _check_changes(file)
    machines = file.present
    for (name, host), (other, other_host) in combinations(machines.items(), 2):
        if host == other_host:
            raise ConfigError(
                f"machines {name} and {other} have the same address {host}; to try it on one computer, "
                "give 127.0.0.1, 127.0.0.2 and so on"
            )
    for name, host in machines.items():
        for other, other_host in machines.items():
            if is_loopback(host) and not is_loopback(other_host):
                raise ConfigError(
                    f"machine {name} has the loopback address {host}, at which {other} ({other_host}) cannot reach it"
                )


def _check_changes(file: NodeFile) -> None:
    """Raise ConfigError for machines that came or left and cannot have."""
    for name in file.joined:
        if name in file.machines:
            raise ConfigError(
                f"machine {name} stands in [machines] and in [joined]: groups begin with the first ones, and a machine "
                "that comes later has a name of its own"
            )
    for name in file.left:
        if name not in file.every_machine:
            raise ConfigError(
                f"left names {name}, which is not among the machines {', '.join(file.every_machine)}: one that left "
                "stays in the file, since the ids of the others go by the order"
            )
    if not 1 <= len(file.present) <= MACHINES_MAX:
        raise ConfigError(
            f"{len(file.present)} machines are there, without those in left; 1 to {MACHINES_MAX} may be"
        )


def _check_groups(file: NodeFile) -> None:
    """Refuse tables of unknown groups, and keys that follow from the file itself and could contradict it."""
    if len(file.groups) > GROUPS_MAX:
        raise ConfigError(f"groups has {len(file.groups)} names: at most {GROUPS_MAX}")
    for name in file.groups:
        check_name("group", name)
        if name in TAKEN_NAMES:
            raise ConfigError(
                f"group {name!r}: that name is taken, like {', '.join(sorted(TAKEN_NAMES - {name}))}"
            )
    if len(set(file.groups)) < len(file.groups):
        raise ConfigError(f"groups names one twice: {', '.join(file.groups)}")
    for name in file.group:
        if name not in file.groups:
            raise ConfigError(f"[group.{name}] is not among the groups {', '.join(file.groups)}")
    tables = {"broker": file.broker} | {f"group.{name}": file.group[name] for name in file.group}
    for table, settings in tables.items():
        for key in settings:
            if key in DECIDED_KEYS:
                raise ConfigError(f"[{table}] {key}: leave it out, {DECIDED_KEYS[key]}")


def _check_ports(file: NodeFile) -> None:
    """Refuse ports that two processes of a machine would want, the port below a client port included."""
    owners: dict[int, str] = {}
    for port, owner in _owned_ports(file):
        if not 1 <= port <= 65_535:
            raise ConfigError(f"[ports] gives {owner} port {port}, which does not exist")
        if port in owners:
            raise ConfigError(f"[ports] gives port {port} to {owners[port]} and to {owner}")
        owners[port] = owner


def _owned_ports(file: NodeFile) -> Iterator[tuple[int, str]]:
    """Yield each port that a process of a machine may want, and for whom."""
    yield file.ports.namesrv, "the name server"
    for place, name in enumerate(file.groups):
        broker = file.ports.broker + PORT_STEP * place
        yield broker, f"clients of {name}"
        yield broker - 2, f"old clients (vipListenEnable) of {name}"
        yield file.ports.member + PORT_STEP * place, f"members of {name}"
    if file.ports.metrics:
        for place, name in enumerate((NAME_SERVER, *file.groups)):
            yield metrics_port(file, place), f"figures of {name}"


def metrics_port(file: NodeFile, place: int) -> int:
    """Return the port of figures of the name server, place 0, or of a group, from place 1 on."""
    assert file.ports.metrics is not None, "no figures are given"
    return file.ports.metrics + place


def _as_text(value: Setting) -> str:
    """Return a value as broker.conf writes it."""
    return str(value).lower() if isinstance(value, bool) else str(value)
