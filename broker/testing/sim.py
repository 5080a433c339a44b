"""The simulator of brokers: whole groups with their clients under seeds (docs/testing.md).

python -m broker.testing.sim --seeds 1000
python -m broker.testing.sim --seed 7 --trace
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Final

from broker.testing.broker_simulation import run_broker_settings
from broker.testing.settings import draw_broker_settings
from dledger.testing.sim_command import Simulator, run_command

BROKER_SIMULATOR: Final = Simulator(
    "broker.testing.sim", "brokers", draw_broker_settings, run_broker_settings
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    return run_command(BROKER_SIMULATOR, arguments)


if __name__ == "__main__":
    sys.exit(main())
