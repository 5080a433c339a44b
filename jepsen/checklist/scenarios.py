"""All scenarios, in the order of their rows."""

from __future__ import annotations

from typing import Final

from jepsen.checklist.clock_faults import CLOCK
from jepsen.checklist.disk_faults import DISK
from jepsen.checklist.machine_faults import MACHINES
from jepsen.checklist.name_faults import NAMES
from jepsen.checklist.network_faults import NETWORK
from jepsen.checklist.operations import OPERATIONS
from jepsen.checklist.process_faults import PROCESS
from jepsen.checklist.stage import Scenario

SCENARIOS: Final[tuple[Scenario, ...]] = (
    *PROCESS.scenarios,
    *NETWORK.scenarios,
    *CLOCK.scenarios,
    *DISK.scenarios,
    *OPERATIONS.scenarios,
    *NAMES.scenarios,
    *MACHINES.scenarios,
)


def scenarios_of(number: int) -> list[Scenario]:
    """Return the scenarios that show a row."""
    return [scenario for scenario in SCENARIOS if scenario.row == number]
