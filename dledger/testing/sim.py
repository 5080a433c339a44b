"""The simulator of the log: whole groups under seeds (docs/testing.md).

    python -m dledger.testing.sim --seeds 1000
    python -m dledger.testing.sim --seconds 60
    python -m dledger.testing.sim --seed 7 --trace --set client_count=1
    python -m dledger.testing.sim --seed 7 --shrink

See sim_command.py for the exit codes.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Final

from dledger.testing.sim_command import Simulator, run_command
from dledger.testing.sim_draws import draw_settings
from dledger.testing.simulation import run_settings

LOG_SIMULATOR: Final = Simulator("dledger.testing.sim", "the log", draw_settings, run_settings)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    return run_command(LOG_SIMULATOR, arguments)


if __name__ == "__main__":
    sys.exit(main())
