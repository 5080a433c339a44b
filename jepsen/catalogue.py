"""The names of the command line: workloads with their systems, and faults."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, Protocol

from broker.node.config import MACHINES_MAX
from jepsen.checkers.groups import check_groups, check_groups_of_keys
from jepsen.checkers.results import CheckResult
from jepsen.clients import cpp, java, node
from jepsen.guards import Guard
from jepsen.history.ops import Op
from jepsen.nemeses.api import Fault
from jepsen.nemeses.registry import UnknownFaultError, named
from jepsen.systems.api import NETWORKS, Network, Subject, SubjectMaker, SystemOptions
from jepsen.systems.brokers import broker_system
from jepsen.systems.log import log_system
from jepsen.systems.machines import machine_system
from jepsen.systems.pysyncobj import pysyncobj_system
from jepsen.workloads.api import Workload
from jepsen.workloads.delay import DelayWorkload
from jepsen.workloads.log_append import LogAppendWorkload
from jepsen.workloads.log_set import LogSetWorkload
from jepsen.workloads.offsets import OffsetsWorkload
from jepsen.workloads.ordered import OrderedWorkload
from jepsen.workloads.pop import PopWorkload
from jepsen.workloads.queue import QueueWorkload
from jepsen.workloads.queue_foreign import ForeignQueueWorkload
from jepsen.workloads.sends import SendsWorkload
from jepsen.workloads.side_by_side import SideBySide
from jepsen.workloads.transactions import TransactionWorkload

NO_FAULT: Final = "none"

FOR_MACHINES: Final = frozenset(
    {
        *("kill", "term", "pause", "stall", "crash-loop", "kill-in-recovery", "rolling-restart"),
        *("same-id-twice", "partition", "flap", "unplug", "bandwidth", "mtu"),
    }
)
"""Faults that can strike a machine as a whole: of its processes, and of the links between machines."""

FOR_MACHINES_ALONE: Final = frozenset({"crash"})
"""Faults of what a supervisor runs; the nodes of a single group have none."""


class UnknownNameError(ValueError):
    """The command line names something that there is not; the message lists what there is."""


class GroupsChecker(Protocol):
    """A checker of a history of several broker groups."""

    def __call__(self, ops: Sequence[Op], *, groups: int) -> CheckResult:
        """Judge the history by group; `groups` is how many there are."""


@dataclass(frozen=True, slots=True)
class WorkloadEntry:
    """A workload and the systems that it runs on.

    Attributes:
        make: makes it for a number of workers.
        systems: make a system, by its name; the first one is taken when none is asked for.
        text: one line for `list`.
        compares_replicas: whether the systems have digests, which must then be equal at the end.
        workers_min: it needs so many.
        lacking: says what this machine lacks for it, None when it can be run.
        shares_groups: whether it works on machines that share several broker groups.
        signs: whether all of its clients can show an account, and speak TLS.
        check_groups: says whether each of several broker groups was put to use.
    """

    make: Callable[[int], Workload]
    systems: Mapping[str, SubjectMaker]
    text: str
    compares_replicas: bool = True
    workers_min: int = 1
    lacking: Callable[[], str | None] = lambda: None
    shares_groups: bool = True
    signs: bool = True
    check_groups: GroupsChecker = check_groups


def _broker_systems(folder: Path, options: SystemOptions) -> AbstractContextManager[Subject]:
    """Return a broker group, or machines where there are several groups. A `SubjectMaker`."""
    make: SubjectMaker = broker_system if options.groups == 1 else machine_system
    return make(folder, options)


_BROKERS: Final[Mapping[str, SubjectMaker]] = {"brokers": _broker_systems}
_LOGS: Final[Mapping[str, SubjectMaker]] = {"log": log_system, "pysyncobj": pysyncobj_system}

_WITHOUT_LINKS: Final = frozenset({"pysyncobj"})

# Members that leave while nobody leads hold up the end of a run for a minute: "ordered" alone has them.
# The first ones have a worker more when they do not come out even: members want company, the last two do not.
_BESIDE: Final[Mapping[str, Callable[[int], Workload]]] = {
    "ordered": partial(OrderedWorkload, members_stay=True),
    "transactions": TransactionWorkload,
    "delay": DelayWorkload,
    "sends": SendsWorkload,
}

_CPP_QUEUE: Final = partial(ForeignQueueWorkload, cpp.CPP)

WORKLOADS: Final[Mapping[str, WorkloadEntry]] = {
    "queue": WorkloadEntry(
        QueueWorkload, _BROKERS, "sends, polls and consumer offsets over several queues"
    ),
    "sends": WorkloadEntry(
        SendsWorkload,
        _BROKERS,
        "raw frames: regrouped, pipelined, given up and made again, one key for several messages",
    ),
    "offsets": WorkloadEntry(
        OffsetsWorkload,
        _BROKERS,
        "consumer offsets committed and asked for at any node",
        check_groups=partial(check_groups_of_keys, writes=("commit",)),
    ),
    "log-set": WorkloadEntry(
        LogSetWorkload,
        _LOGS,
        "elements appended to the log, the whole log read as a set",
        shares_groups=False,
    ),
    "log-append": WorkloadEntry(
        LogAppendWorkload,
        _LOGS,
        "lists by key in the log, linearizable appends and reads",
        shares_groups=False,
    ),
    "transactions": WorkloadEntry(
        TransactionWorkload, _BROKERS, "half messages, decisions sent and unsent, checks"
    ),
    "ordered": WorkloadEntry(OrderedWorkload, _BROKERS, "consumption in order, under locks"),
    "delay": WorkloadEntry(DelayWorkload, _BROKERS, "levels, delays and due times"),
    "pop": WorkloadEntry(
        PopWorkload,
        _BROKERS,
        "messages popped, acknowledged, given another time or forgotten",
        shares_groups=False,
    ),
    "queue-cpp": WorkloadEntry(
        _CPP_QUEUE,
        _BROKERS,
        "queue, with Apache's C++ client among the clients",
        workers_min=2,
        lacking=cpp.lacking,
        signs=False,
    ),
    "queue-java": WorkloadEntry(
        partial(ForeignQueueWorkload, java.JAVA),
        _BROKERS,
        "queue, with Apache's Java client among the clients",
        workers_min=2,
        lacking=java.lacking,
        shares_groups=False,
        signs=False,
    ),
    "queue-node": WorkloadEntry(
        partial(ForeignQueueWorkload, node.NODE),
        _BROKERS,
        "queue, with npm's RocketMQ client among the clients",
        workers_min=2,
        lacking=node.lacking,
        shares_groups=False,
        signs=False,
    ),
    "together": WorkloadEntry(
        partial(SideBySide, {"queue": QueueWorkload, **_BESIDE}),
        _BROKERS,
        "queue, ordered, transactions, delay and sends side by side",
        workers_min=5,
    ),
    "together-cpp": WorkloadEntry(
        partial(SideBySide, {"queue": _CPP_QUEUE, **_BESIDE}),
        _BROKERS,
        "together, with Apache's C++ client among the clients; what make demo runs",
        workers_min=10,
        lacking=cpp.lacking,
        signs=False,
    ),
}


def workload_entry(name: str) -> WorkloadEntry:
    """Return the entry of a workload.

    Raises:
        UnknownNameError: there is none.
    """
    entry = WORKLOADS.get(name)
    if entry is None:
        raise UnknownNameError(f"no workload {name!r}; there are: {', '.join(sorted(WORKLOADS))}")
    return entry


def system_maker(entry: WorkloadEntry, name: str, network: Network) -> SubjectMaker:
    """Return the maker of a workload's system by name; "" is the workload's first one.

    Raises:
        UnknownNameError: the workload does not run on it, or nothing can stand between its members.
    """
    if name in _WITHOUT_LINKS and network != "none":
        raise UnknownNameError(
            f"members of {name} know each other by address: no links between them"
        )
    if not name:
        return next(iter(entry.systems.values()))
    maker = entry.systems.get(name)
    if maker is None:
        raise UnknownNameError(f"no system {name!r} here; there are: {', '.join(entry.systems)}")
    return maker


def make_faults(text: str) -> list[Fault]:
    """Make the faults of a list of specifications joined with commas; "none" is no fault.

    Raises:
        UnknownNameError: one of them is not there, or stands there twice: a history could not distinguish them.
    """
    specs = [spec.strip() for spec in text.split(",") if spec.strip()]
    specs = [spec for spec in specs if spec != NO_FAULT]
    twice = [spec for spec in dict.fromkeys(specs) if specs.count(spec) > 1]
    if twice:
        raise UnknownNameError(f"named twice: {', '.join(twice)}")
    try:
        return [named(spec) for spec in specs]
    except UnknownFaultError as error:
        raise UnknownNameError(str(error)) from error


def nemesis_of(faults: Sequence[Fault]) -> str:
    """Return the list of specifications that makes these faults."""
    return ",".join(fault.name for fault in faults) or NO_FAULT


def _word_of(fault: Fault) -> str:
    return fault.name.partition(":")[0]


def check_nodes(faults: Sequence[Fault]) -> None:
    """Check that faults can strike the nodes of a single group. Raises UnknownNameError."""
    alone = [fault.name for fault in faults if _word_of(fault) in FOR_MACHINES_ALONE]
    if alone:
        raise UnknownNameError(
            f"{', '.join(alone)}: only machines have supervisors: --groups 2 or more"
        )


def check_machines(workload: str, faults: Sequence[Fault], *, nodes: int, network: Network) -> None:
    """Check that a run can be made on machines that share several groups.

    Raises:
        UnknownNameError: the workload or a fault knows single groups only, or no such machines can be made.
    """
    if not workload_entry(workload).shares_groups:
        fitting = ", ".join(name for name, entry in WORKLOADS.items() if entry.shares_groups)
        raise UnknownNameError(f"{workload} knows one group; with several there are: {fitting}")
    words = FOR_MACHINES | FOR_MACHINES_ALONE
    foreign = [fault.name for fault in faults if _word_of(fault) not in words]
    if foreign:
        fitting = ", ".join(sorted(words))
        raise UnknownNameError(
            f"{', '.join(foreign)}: no fault of machines with several groups; there are: {fitting}"
        )
    if nodes % 2 == 0 or nodes > MACHINES_MAX:
        raise UnknownNameError(f"{nodes} machines cannot share groups: 1, 3, 5 or {MACHINES_MAX}")
    if network == "proxies":
        raise UnknownNameError("no proxies between machines: --network namespaces")


def check_guards(workload: str, system: str, network: Network, guards: Sequence[Guard]) -> None:
    """Check that a run can be made behind these guards. Raises UnknownNameError."""
    entry = workload_entry(workload)
    name = system or next(iter(entry.systems))
    if guards and name == "pysyncobj":
        raise UnknownNameError(f"{name} has no guards of ours: it is there to be compared with")
    if "accounts" in guards and name == "log":
        raise UnknownNameError("a plain log knows no accounts: --guards secret,tls")
    foreign = [guard for guard in guards if guard != "secret"]
    if foreign and not entry.signs:
        raise UnknownNameError(
            f"{workload}: the foreign client is set up without {' and '.join(foreign)}"
        )
    if "tls" in guards and network == "proxies":
        raise UnknownNameError(
            "proxies read who sends each frame, and could not behind TLS: --network namespaces"
        )


def network_for(faults: Sequence[Fault], asked: Network | None, *, groups: int = 1) -> Network:
    """Return the kind of network that these faults need between the nodes.

    Args:
        faults: of the run.
        asked: what the command line says; None leaves it to the faults.
        groups: that the nodes share: several have no proxies.

    Raises:
        UnknownNameError: the faults want different links, or others than were asked for.
    """
    wanted = {fault.links for fault in faults} - {"none"}
    kinds = wanted - {"any"}
    if len(kinds) > 1:
        raise UnknownNameError(f"no run can have links of two kinds: {', '.join(sorted(kinds))}")
    for network in NETWORKS:
        if network in kinds:
            if asked not in (None, network):
                raise UnknownNameError(f"these faults need --network {network}, not {asked}")
            return network
    if wanted and asked == "none":
        raise UnknownNameError("these faults need links: --network proxies or namespaces")
    default: Network = "proxies" if groups == 1 else "namespaces"
    return asked or (default if wanted else "none")
