"""The file of failing seeds: what is printed may be lost with the terminal, and a fresh seed with it.

A finding is written at once, before the next seed runs, as a command that shows the same run again (with the draws,
since a later version draws other settings), and the knobs that the seed drew. It knows no command line.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Final

from dledger.testing.sim_settings import SimSettings
from dledger.testing.simulation import SimResult

FAILURES_FILE: Final = Path("build/failing-seeds.txt")
"""Below the working folder, unless the command says otherwise."""


class KeptFailures:
    """Adds findings to a file, which is made with the first."""

    def __init__(
        self,
        file: Path,
        *,
        command_of: Callable[[int], str],
        settings_of: Callable[[int], SimSettings],
    ) -> None:
        """Note where to write to.

        Args:
            file: to add to.
            command_of: returns the command that replays a seed.
            settings_of: returns the settings of a seed.
        """
        self._file = file
        self._command_of = command_of
        self._settings_of = settings_of

    def keep(self, result: SimResult) -> str:
        """Write a finding to the file; return its row.

        Raises:
            OSError: the file cannot be written.
        """
        row = (
            f"{self._command_of(result.seed)}  # {result.verdict.name.lower()}: {last_line(result)}"
        )
        knobs = " ".join(f"{name}={value}" for name, value in self._describe(result.seed))
        self._file.parent.mkdir(parents=True, exist_ok=True)
        with self._file.open("a", encoding="utf-8") as kept:
            now = datetime.now().astimezone().isoformat(timespec="seconds")
            kept.write(f"{row}\n    # {now}: {knobs}\n")
        return row

    def _describe(self, seed: int) -> list[tuple[str, str]]:
        """Return the knobs as `--set` takes them."""
        rows = dict(self._settings_of(seed).describe())
        del rows["seed"]
        faults = (kind.split("=") for kind in rows.pop("faults").split() if "=" in kind)
        rows["faults"] = ",".join(f"{kind}:{weight}" for kind, weight in faults if weight != "0")
        return list(rows.items())


def last_line(result: SimResult) -> str:
    """Return what went wrong in one line: the last, which is the error of a traceback."""
    return result.problem.strip().splitlines()[-1]
