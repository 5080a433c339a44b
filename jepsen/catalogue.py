"""What can be named on the command line: workloads with their systems, and faults."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from jepsen.broker_system import broker_system
from jepsen.nemeses.api import Fault
from jepsen.nemeses.registry import UnknownFaultError, named
from jepsen.system import NETWORKS, Network, SubjectMaker
from jepsen.workloads.api import Workload
from jepsen.workloads.queue import QueueWorkload

NO_FAULT: Final = "none"


class UnknownNameError(ValueError):
    """The command line names something that there is not; the message lists what there is."""


@dataclass(frozen=True, slots=True)
class WorkloadEntry:
    """A workload and the system that it runs on.

    Attributes:
        make: makes it for a number of workers.
        system: makes the system.
        text: one line for `list`.
        compares_replicas: whether the system can tell digests, which must then be equal at the end.
    """

    make: Callable[[int], Workload]
    system: SubjectMaker
    text: str
    compares_replicas: bool = True


WORKLOADS: Final[Mapping[str, WorkloadEntry]] = {
    "queue": WorkloadEntry(
        QueueWorkload, broker_system, "sends, polls and consumer offsets over several queues"
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


def make_faults(text: str) -> list[Fault]:
    """Make the faults of a list of specifications joined with commas; "none" is no fault.

    Raises:
        UnknownNameError: one of them is not there.
    """
    specs = [spec.strip() for spec in text.split(",") if spec.strip()]
    try:
        return [named(spec) for spec in specs if spec != NO_FAULT]
    except UnknownFaultError as error:
        raise UnknownNameError(str(error)) from error


def network_for(faults: Sequence[Fault], asked: Network | None) -> Network:
    """Return what must stand between the nodes for these faults.

    Args:
        faults: of the run.
        asked: what the command line says; None leaves it to the faults.

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
    return asked or ("proxies" if wanted else "none")
