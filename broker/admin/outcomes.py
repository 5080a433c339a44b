"""What became of a change that was asked of several broker groups: printed, for scripts, and as an exit code."""

from __future__ import annotations

from collections.abc import Sequence

from broker.admin.cluster import ChangeOutcome
from broker.admin.exit_codes import EXIT_OK, EXIT_UNCHANGED, EXIT_UNKNOWN
from broker.admin.printing import print_line

_SAYS = {
    "refused": "was not changed",
    "unknown": "may have been changed, or may yet be",
}


def exit_code_of(outcomes: Sequence[ChangeOutcome]) -> int:
    """Return what they mean for a script: a part that was done is not nothing, so refusals beside it are told alike."""
    if any(each.is_unknown for each in outcomes):
        return EXIT_UNKNOWN
    return EXIT_UNCHANGED if any(each.problem for each in outcomes) else EXIT_OK


def outcomes_json(outcomes: Sequence[ChangeOutcome]) -> list[dict[str, object]]:
    """Return them as scripts read them."""
    return [
        {"broker": each.broker, "outcome": each.state, "problem": each.problem} for each in outcomes
    ]


def print_outcomes(outcomes: Sequence[ChangeOutcome]) -> None:
    """Print those that were not done, each with what may be concluded."""
    for each in outcomes:
        if each.problem:
            print_line(f"{each.broker} {_SAYS[each.state]}: {each.problem}", "bold red")
