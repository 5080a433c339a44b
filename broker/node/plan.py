"""The processes of one machine: their commands, settings and places on its disk. Pure: it writes nothing."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from broker.node.config import NAME_SERVER, PORT_STEP, NodeFile, metrics_port
from broker.processes.child import Program
from broker.server.config import BrokerConfig, Reading, read_settings
from broker.settings.judging import join_mistakes
from dledger import ConfigError
from dledger.config import is_loopback
from dledger_mq.net.address import Address

_PYTHON: Final = (sys.executable, "-m")


@dataclass(frozen=True, slots=True)
class ChildPlan:
    """A process that is to run on this machine.

    Attributes:
        name: `namesrv`, or the group's.
        address: where clients reach it.
        command: program and arguments; they name a file in this machine's folder, so nobody else's are the same.
        log: file that takes what it prints.
        files: path and content of the files that its command names.
    """

    name: str
    address: Address
    command: tuple[str, ...]
    log: Path
    files: tuple[tuple[Path, str], ...]

    @property
    def program(self) -> Program:
        """The program that is kept running."""
        return Program(self.name, self.command, self.log)


@dataclass(frozen=True, slots=True)
class NodePlan:
    """All processes of one machine. The name server comes first, and stops last.

    Attributes:
        machine: its name.
        folder: of its data.
        children: the processes.
        warnings: what may be a mistake in the file.
        log_folder: where the processes log; None: below `folder`.
        changes: commands by which its members are added, of a machine that joined.
        has_left: nothing is to run here any more.
    """

    machine: str
    folder: Path
    children: tuple[ChildPlan, ...]
    warnings: tuple[str, ...]
    log_folder: str | None = None
    changes: tuple[str, ...] = ()
    has_left: bool = False

    def program_left(self, name: str) -> Program:
        """Return the program of a group that is gone from node.toml: a process that is left of it is only to stop."""
        return Program(name, (), self.folder / "logs" / f"{name}.log")


def plan_node(
    file: NodeFile,
    machine: str,
    *,
    secret: str | None,
    tls: Mapping[str, str] | None = None,
    is_lenient: bool = False,
) -> NodePlan:
    """Lay out the processes of a machine.

    Args:
        file: what all machines share.
        machine: one of `file.every_machine`.
        secret: what `file.secret_file` holds.
        tls: what `file.tls_config_file` holds.
        is_lenient: brokers are not given unknown keys and wrong values; what protects is refused still.

    Raises:
        ConfigError: groups' settings are wrong; names all mistakes and their groups.
    """
    folder = Path(file.store) / machine
    flags = {**(tls or {}), **({"secret": secret} if secret else {})}
    given = {
        group: file.settings_of(group) | _decided(file, machine, place)
        for place, group in enumerate(file.groups)
    }
    readings = {
        group: read_settings(values, flags, is_lenient=is_lenient)
        for group, values in given.items()
    }
    mistakes = [(text, group) for group in readings for text in readings[group].mistakes]
    mistakes += _shared_ports(readings)
    if mistakes:
        raise ConfigError(join_mistakes(_with_groups(mistakes, file.groups), None))
    warnings = [(text, group) for group in readings for text in readings[group].warnings]
    acl_file, doubt = _accounts_of_every_group(readings)
    children = [_plan_name_server(file, machine, folder, acl_file=acl_file)]
    for group, reading in readings.items():
        values = _without(given[group], reading.passed_over)
        listen = _config(reading).listen
        children.append(_plan_broker(file, machine, group, listen=listen, values=values))
    return NodePlan(
        machine,
        folder,
        tuple(children),
        (*_with_groups(warnings, file.groups), *doubt),
        log_folder=file.log_folder,
        changes=_changes(file, machine),
        has_left=machine in file.left,
    )


def plan_to_look(file: NodeFile, machine: str) -> NodePlan:
    """Lay out the processes of a machine that are to be seen or stopped: their commands and places.

    What they are set to is not looked at: a mistake there, or a secret that is gone, keeps nobody from stopping them.
    """
    folder = Path(file.store) / machine
    children = [_plan_name_server(file, machine, folder, acl_file=None)]
    for place, group in enumerate(file.groups):
        decided = _decided(file, machine, place)
        listen = Address(decided["bindAddress"], int(decided["listenPort"]))
        children.append(_plan_broker(file, machine, group, listen=listen, values=decided))
    return NodePlan(machine, folder, tuple(children), (), log_folder=file.log_folder)


def _config(reading: Reading) -> BrokerConfig:
    assert reading.config is not None, f"without mistakes there are settings: {reading.mistakes}"
    return reading.config


def _shared_ports(readings: Mapping[str, Reading]) -> list[tuple[str, str]]:
    """Return what is wrong with groups that give their figures where another one does, each with its group."""
    first: dict[Address, str] = {}
    found = []
    for group, reading in readings.items():
        at = reading.config.metrics.listen if reading.config is not None else None
        if at is not None and at.port and first.setdefault(at, group) != group:
            text = f"figures are given at {at}, as those of {first[at]}: set metrics in [ports]"
            found.append((text, group))
    return found


def _accounts_of_every_group(readings: Mapping[str, Reading]) -> tuple[str | None, list[str]]:
    """Return the accounts of the name server, which are those of all groups, and why it has none if only some do."""
    files = {group: _config(reading).acl_file for group, reading in readings.items()}
    if len(set(files.values())) == 1:
        return next(iter(files.values())), []
    named = "; ".join(f"{group}: {file or 'none'}" for group, file in files.items())
    why = (
        f"the name server lets everybody do everything, since its groups do not have one aclFile ({named}); with the "
        "same in all groups it would ask for accounts, too"
    )
    return None, [why]


def _with_groups(texts: Iterable[tuple[str, str]], every: Sequence[str]) -> list[str]:
    """Return each text once, with the groups that it is about.

    Args:
        texts: each with one of its groups.
        every: all groups.
    """
    groups_by_text: dict[str, list[str]] = {}
    for text, group in texts:
        groups_by_text.setdefault(text, []).append(group)
    return [
        f"{'all groups' if groups == list(every) else 'group ' + ', '.join(groups)}: {text}"
        for text, groups in groups_by_text.items()
    ]


def _without(values: Mapping[str, str], keys: Sequence[str]) -> dict[str, str]:
    return {key: value for key, value in values.items() if key not in keys}


def _of_all(file: NodeFile) -> tuple[str, ...]:
    """Return the options of all processes."""
    options: list[str] = []
    if file.tls_config_file:
        options += ["--tls-config", file.tls_config_file]
    if file.log_level:
        options += ["--log-level", file.log_level]
    if file.log_format == "json":
        options += ["--log-format", "json"]
    return tuple(options)


def _of_brokers(file: NodeFile) -> tuple[str, ...]:
    """Return the options of all brokers; the name server gets the secret by another one."""
    secret = ("--secret-file", file.secret_file) if file.secret_file else ()
    return (*secret, *_of_all(file))


def _log_file(file: NodeFile, machine: str, name: str) -> tuple[str, ...]:
    """Return the option that gives a process a log file of its own, if there is a folder for them."""
    if file.log_folder is None:
        return ()
    return ("--log-file", str(Path(file.log_folder) / f"{machine}-{name}.log"))


def _plan_name_server(
    file: NodeFile, machine: str, folder: Path, *, acl_file: str | None
) -> ChildPlan:
    """Lay out the name server; its secret counts for the brokers of all groups, and so do its accounts.

    Its settings lie beside theirs, so a relative `acl_file` names the same file there.
    """
    host = file.every_machine[machine]
    listen = Address(host, file.ports.namesrv)
    settings = folder / "conf" / "namesrv.conf"
    values = {"bindAddress": listen.host, "listenPort": str(listen.port)}
    if acl_file is not None:
        values |= {"aclEnable": "true", "aclFile": acl_file}
    options: tuple[str, ...] = ("--group-secret-file", file.secret_file) if file.secret_file else ()
    options = (*options, *_of_all(file), *_log_file(file, machine, NAME_SERVER))
    if file.ports.metrics:
        figures = Address(_figures_host(file, host), metrics_port(file, 0))
        options = (*options, "--metrics", str(figures))
    return ChildPlan(
        name=NAME_SERVER,
        address=listen,
        command=(*_PYTHON, "broker.namesrv.cli", "-c", str(settings), *options),
        log=folder / "logs" / "namesrv.log",
        files=((settings, _properties(values)),),
    )


def _plan_broker(
    file: NodeFile, machine: str, group: str, *, listen: Address, values: Mapping[str, str]
) -> ChildPlan:
    """Lay out the broker of a group: `values` go into its file."""
    folder = Path(file.store) / machine
    settings = folder / "conf" / f"{group}.conf"
    options = (*_of_brokers(file), *_log_file(file, machine, group))
    return ChildPlan(
        name=group,
        address=listen,
        command=(*_PYTHON, "broker.server.cli", "-c", str(settings), *options),
        log=folder / "logs" / f"{group}.log",
        files=((settings, _properties(values)),),
    )


def _decided(file: NodeFile, machine: str, place: int) -> dict[str, str]:
    """Return the settings of a group's broker that follow from the file (DECIDED_KEYS, and who leads if it can)."""
    group, host = file.groups[place], file.every_machine[machine]
    shift = PORT_STEP * place
    ids = _ids(file)
    preferred = ids[list(file.machines)[place % len(file.machines)]]
    joining = {"raftJoin": "true"} if machine in file.joined else {}
    return (
        joining
        | _figures_of_group(file, host, place)
        | {
            "dLegerGroup": group,
            "dLegerSelfId": ids[machine],
            "dLegerPeers": ";".join(
                _member(file, name, place) for name in _known_to(file, machine)
            ),
            "preferredLeaderId": file.settings_of(group).get("preferredLeaderId", preferred),
            "namesrvAddr": ";".join(f"{at}:{file.ports.namesrv}" for at in file.present.values()),
            "storePathRootDir": str(Path(file.store) / machine / group),
            "listenPort": str(file.ports.broker + shift),
            "bindAddress": host,
            "brokerIP1": host,
            "brokerClusterName": file.cluster,
        }
    )


def _figures_host(file: NodeFile, host: str) -> str:
    """Return where figures are given: to this machine alone, unless the file says otherwise for all groups."""
    own = host if is_loopback(host) else "127.0.0.1"
    return str(file.broker.get("metricsPromExporterHost", own))


def _figures_of_group(file: NodeFile, host: str, place: int) -> dict[str, str]:
    if not file.ports.metrics:
        return {}
    return {
        "metricsExporterType": "PROM",
        "metricsPromExporterHost": _figures_host(file, host),
        "metricsPromExporterPort": str(metrics_port(file, place + 1)),
    }


def _ids(file: NodeFile) -> dict[str, str]:
    """Return the id of each machine's members: by its place, also of those that came or left."""
    return {name: f"n{number}" for number, name in enumerate(file.every_machine)}


def _member(file: NodeFile, machine: str, place: int) -> str:
    """Return a machine's member of a group, as id and address."""
    port = file.ports.member + PORT_STEP * place
    return f"{_ids(file)[machine]}-{file.every_machine[machine]}:{port}"


def _known_to(file: NodeFile, machine: str) -> list[str]:
    """Return the machines whose members a machine's are started with.

    They are the same at each start, whoever comes or leaves later: a store takes its first ones always (docs/adr/0185).
    Of two with one address the later one is there, and the other has left.
    """
    every = file.every_machine
    names = list(every)
    if machine in file.machines:
        return names[: len(file.machines)]
    names = names[: names.index(machine) + 1]
    last = {every[name]: name for name in names}
    return [name for name in names if last[every[name]] == name]


def _changes(file: NodeFile, machine: str) -> tuple[str, ...]:
    """Return the commands that make members of what runs on a machine that joined."""
    if machine not in file.joined:
        return ()
    name_servers = ";".join(f"{at}:{file.ports.namesrv}" for at in file.present.values())
    secret = f" --secret-file {shlex.quote(file.secret_file)}" if file.secret_file else ""
    return tuple(
        f'dledger-admin members add {_member(file, machine, place)} -g {group} -n "{name_servers}"{secret}'
        for place, group in enumerate(file.groups)
    )


def _properties(values: Mapping[str, str]) -> str:
    """Write settings as java.util.Properties reads them (broker/properties.py)."""
    lines = (f"{key}={value}".replace("\\", "\\\\") for key, value in values.items())
    return (
        "# Written by dledger-node at each start: change node.toml instead.\n"
        + "\n".join(lines)
        + "\n"
    )
