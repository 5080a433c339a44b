"""The results of a run, as results.json has them. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from jepsen.checkers.results import CheckResult
from jepsen.checkers.work import NAME as WORK
from jepsen.run import RunResult, RunSettings

VERDICTS: Final[Mapping[bool | None, str]] = {True: "valid", False: "invalid", None: "unknown"}


class Summary(msgspec.Struct, frozen=True, omit_defaults=False):
    """The content of results.json; its members are a promise to scripts.

    Attributes:
        verdict: "valid", "invalid", "unknown" or "skipped".
        valid: the same as true, false or null.
        why: in words, why it is not valid; empty when it is.
        command: that repeats the run.
        settings: what it was.
        operations: invocations of workers.
        faults: how often each was injected.
        problems: why it proves nothing, whatever the checkers say.
        checks: what each checker found.
        work: in words, what was done of what was asked for while things were broken.
    """

    verdict: str
    valid: bool | None
    why: str
    command: str
    settings: RunSettings
    operations: int
    faults: dict[str, int]
    problems: tuple[str, ...]
    checks: tuple[CheckResult, ...]
    work: str = ""


def summary_of(result: RunResult) -> Summary:
    """Build the summary of a run."""
    return Summary(
        verdict="skipped" if result.skipped else VERDICTS[result.valid],
        valid=result.valid,
        why=why_not_valid(result),
        command=command_of(result.settings),
        settings=result.settings,
        operations=sum(op.is_client and op.type == "invoke" for op in result.ops),
        work=work_of(result.checks),
        faults=dict(result.faults),
        problems=tuple(result.problems),
        checks=tuple(result.checks),
    )


def work_of(checks: Sequence[CheckResult]) -> str:
    """Say in one sentence how much was done of what was asked for; empty where nobody counted."""
    counts = next((check.counts for check in checks if check.name == WORK), None)
    if counts is None:
        return ""
    kinds = counts["done_by_kind"]
    assert isinstance(kinds, dict), "the checker counts so"
    each = ", ".join(f"{f} {done}" for f, done in kinds.items())
    return (
        f"{counts['done']} of {counts['asked']} operations that were asked for were done "
        f"({counts['done_percent']} %){f': {each}' if each else ''}"
    )


def why_not_valid(result: RunResult) -> str:
    """Return in one sentence why a run is not valid; empty when it is."""
    if result.skipped:
        return result.skipped
    broken = [check for check in result.checks if check.valid is False]
    if broken:
        kinds = [f"{len(check.anomalies)} by {check.name}" for check in broken]
        return f"broken promises: {', '.join(kinds)}; the first: {broken[0].anomalies[0].text}"
    unknown = [f"{c.name}: {c.why_unknown}" for c in result.checks if c.valid is None]
    return "; ".join([*result.problems, *unknown])


def command_of(settings: RunSettings) -> str:
    """Return the command that makes such a run again."""
    if settings.command:
        return settings.command
    words = [
        f"dledger-jepsen run --workload {settings.workload} --nemesis {settings.nemesis}",
        f"--time-limit {settings.time_limit_s:g} --nodes {settings.nodes} --seed {settings.seed}",
        f"--rate {settings.rate:g} --concurrency {settings.workers}",
    ]
    if settings.network != "none":
        words.append(f"--network {settings.network}")
    if settings.system:
        words.append(f"--system {settings.system}")
    if settings.groups > 1:
        words.append(f"--groups {settings.groups}")
    if settings.guards:
        words.append(f"--guards {','.join(settings.guards)}")
    return " ".join(words)
