"""A mutation run over a sample: do the quick tests notice when a line is wrong?

    python scripts/mutation.py --of 60 --seed 10      # needs mutmut; what it takes stands in pyproject.toml

mutmut makes the mutants of all modules under `tool.mutmut`, and of each group of them as many are tried as `--of`
says, drawn under the seed, each with the tests that come by its function. In the end come the counts for each
group, and the names of what survived: `mutmut show NAME` prints one. Its folder is `mutants/`.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Final

MUTANTS: Final = Path("mutants")
GROUPS: Final = {
    "raft": ("dledger.raft.",),
    "engine": ("dledger.engine.",),
    "staging": ("broker.store.staging.",),
    "fold": ("broker.store.state.", "broker.store.commands.", "broker.store.parse."),
    "repeats": (
        "broker.service.repeats.",
        "broker.service.sameness.",
        "broker.store.recent_sends.",
        "broker.server.handlers.known_sends.",
    ),
}
KILLED: Final = (1, 3)
UNTESTED: Final = 33


def exit_codes() -> dict[str, int | None]:
    """Return the tests' exit status for each mutant that was made; None where it was not tried."""
    codes: dict[str, int | None] = {}
    for meta in sorted(MUTANTS.rglob("*.meta")):
        codes |= json.loads(meta.read_text())["exit_code_by_key"]
    return codes


def drawn(codes: dict[str, int | None], of_each: int, seed: int) -> dict[str, list[str]]:
    """Draw the mutants to be tried, by group."""
    chance = random.Random(seed)
    sample = {}
    for group, starts in GROUPS.items():
        names = sorted(name for name in codes if name.startswith(starts))
        print(f"{group}: {len(names)} mutants")
        sample[group] = chance.sample(names, min(of_each, len(names)))
    return sample


def mutmut_run(*names: str) -> None:
    """Let mutmut make the mutants and try those of these names; its verdicts stand in its folder.

    Raises:
        CalledProcessError: a test fails without any mutant, or mutmut could not run.
    """
    subprocess.run(["mutmut", "run", "--max-children", "1", *names], check=True)


def main() -> int:
    """Run the sample, and print the mutants that survived."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--of", type=int, default=60, help="mutants of each group")
    parser.add_argument("--seed", type=int, default=10)
    parsed = parser.parse_args()
    if not MUTANTS.exists():
        mutmut_run("dledger.raft.hard_state.*")  # makes all, tries five
    sample = drawn(exit_codes(), parsed.of, parsed.seed)
    mutmut_run(*(name for names in sample.values() for name in names))
    codes = exit_codes()
    for group, names in sample.items():
        ends = [codes[name] for name in names]
        killed = sum(end in KILLED for end in ends)
        survived = [name for name in names if codes[name] in (0, UNTESTED)]
        other = len(names) - killed - len(survived)
        print(f"{group}: tried {len(names)}, killed {killed}, out of time {other}")
        print(*(f"    survived: {name}" for name in survived), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
