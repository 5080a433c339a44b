"""Writes docs/rocketmq-tests.md from a run of RocketMQ's own integration tests against a cluster of ours.

    python -m tests.interop.rocketmq_it [--only AREA|CLASS[#METHOD]]... [--json] [--from FILE]... [--out FILE]

With `--only`, an area (filter, pop, order, ...) or a class without its package, the page is not written unless `--out`
names one. `--json` prints a line for each test; `--from` reads such lines of earlier runs, of which the last one about
a test counts, and without `--only` nothing is run beside it. `make interop` fetches what is needed.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from itertools import groupby
from pathlib import Path

from jepsen.processes import sigterm_as_interrupt
from tests.interop.conftest import ROOT
from tests.interop.rocketmq_causes import CAUSES, Cause, Whose
from tests.interop.rocketmq_tests import (
    AREAS,
    Outcome,
    Runner,
    Verdict,
    area,
    classes,
    lacking,
    three_groups,
)

PAGE = ROOT / "docs" / "rocketmq-tests.md"
SENTENCE_CHARS_MAX = 200

HEAD = """# RocketMQ's own integration tests

What came of the integration tests of Apache RocketMQ 5.5.0 (`rocketmq-test` on Maven Central, compiled as it is there,
with the client of that release) against a cluster of three broker groups of ours, the first of three members. Made by
`python -m tests.interop.rocketmq_it` from such a run; do not edit.

Theirs start RocketMQ's brokers in their own virtual machine. Here their base classes are replaced by ours
(`tests/interop/clients/rocketmq_test`), which say where the running brokers are and ask them what tests want to know of
a broker: its address, offsets, topics. A test that reaches further into a broker's objects is not applicable; the
missing method or class, as the virtual machine names it, is the reason. Settings of RocketMQ's brokers that a test
changes change nothing here; those of tests that did not pass are named.

"""


def chosen(only: Iterable[str]) -> Iterator[tuple[str, list[str]]]:
    """Return the classes that are wanted, each with its methods, none for all of them."""
    wanted = list(only)
    for name in classes():
        methods = [
            method
            for each in wanted
            for one, _, method in [each.partition("#")]
            if method and name.endswith(one)
        ]
        plain = {each for each in wanted if "#" not in each}
        if not wanted or area(name) in plain or any(name.endswith(each) for each in plain):
            yield name, []
        elif methods:
            yield name, methods


def cause_of(test: str) -> Cause | None:
    """Return what is known of the failure of a test: of itself, or of its class."""
    plain = test.partition("[")[0]
    return CAUSES.get(test) or CAUSES.get(plain) or CAUSES.get(plain.rpartition(".")[0])


def why(outcome: Outcome) -> str:
    """Return why a test did not pass, as the page shows it."""
    found = outcome.sentence
    if outcome.verdict is Verdict.FAILED and (cause := cause_of(outcome.test)):
        found = f"{cause.whose.value}: {cause.sentence}"
    elif outcome.verdict is Verdict.FAILED:
        found = f"not looked into: {found[:SENTENCE_CHARS_MAX]}"
    if outcome.verdict is not Verdict.PASSED and outcome.changed:
        found += f" (sets {', '.join(f'`{each}`' for each in outcome.changed)})"
    return " ".join(found.replace("|", "/").split())


def page(outcomes: list[Outcome]) -> str:
    """Return the page."""
    lines = ["| | passed | failed | not applicable |", "|---|---|---|---|"]
    found = {name: [one for one in outcomes if area(one.test) == name] for name, _ in AREAS}
    for name, those in [*found.items(), ("all", outcomes)]:
        counts = [str(sum(one.verdict is each for one in those)) for each in Verdict]
        lines.append(f"| {name} | {' | '.join(counts)} |")
    lines += ["", _whose(outcomes), ""]
    for name, those in found.items():
        if those:
            lines += [f"## {name}", "", "| test | outcome | |", "|---|---|---|"]
            lines += _rows(those)
            lines.append("")
    return HEAD + "\n".join(lines).rstrip() + "\n"


def _rows(outcomes: list[Outcome]) -> list[str]:
    """Return the rows of an area; one for a class of which no test passed, all for the same reason."""
    rows = []
    by_class = groupby(outcomes, lambda one: one.test.partition("[")[0].rpartition(".")[0])
    for name, found in ((name, list(those)) for name, those in by_class):
        same = {(one.verdict, why(replace(one, changed=()))) for one in found}
        if len(found) > 1 and len(same) == 1 and found[0].verdict is not Verdict.PASSED:
            ((verdict, reason),) = same
            rows.append(f"| `{name}`, {len(found)} tests | {verdict.value} | {reason} |")
        else:
            rows += [f"| `{one.test}` | {one.verdict.value} | {why(one)} |" for one in found]
    return rows


def _whose(outcomes: list[Outcome]) -> str:
    """Return a sentence about whose the failures are."""
    failed = [cause_of(one.test) for one in outcomes if one.verdict is Verdict.FAILED]
    known = [
        f"{sum(one is not None and one.whose is each for one in failed)} {each.value}"
        for each in Whose
    ]
    unknown = sum(one is None for one in failed)
    return f"Failures: {', '.join(known)}" + (f", {unknown} not looked into." if unknown else ".")


def run(only: Iterable[str], *, members: int, as_json: bool, logs: Path) -> list[Outcome]:
    """Run what is wanted, and say what came of each test."""
    outcomes: list[Outcome] = []
    with three_groups(logs / "groups", members) as groups:
        names = [each.group for each in groups]
        runner = Runner(groups[0].namesrv, names, logs, partial(tell, as_json=as_json))
        for name, methods in chosen(only):
            outcomes += runner.run(name, methods)
    return outcomes


def earlier(files: Iterable[Path]) -> list[Outcome]:
    """Return what earlier runs told with `--json`."""
    rows = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    return [
        Outcome(row["test"], Verdict(row["verdict"]), row["said"], tuple(row["changed"]))
        for row in rows
    ]


def latest(outcomes: Iterable[Outcome]) -> list[Outcome]:
    """Return the last outcome of each test, by class and test."""
    found = {one.test: one for one in outcomes}
    return [found[test] for test in sorted(found)]


def tell(one: Outcome, *, as_json: bool) -> None:
    """Say what came of a test."""
    line = f"{one.test}: {one.verdict.value} {one.sentence}".rstrip()
    if as_json:
        line = json.dumps(
            {
                "test": one.test,
                "area": area(one.test),
                "verdict": one.verdict.value,
                "why": why(one),
                "said": one.sentence,
                "changed": list(one.changed),
            }
        )
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> None:
    """Run the tests, and write the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", action="append", default=[], metavar="AREA|CLASS[#METHOD]")
    parser.add_argument("--json", action="store_true", help="a line of JSON for each test")
    parser.add_argument("--from", action="append", default=[], type=Path, dest="earlier")
    parser.add_argument("--members", type=int, default=3, help="of the first group")
    parser.add_argument("--out", type=Path, help=f"the page (default: {PAGE.relative_to(ROOT)})")
    parser.add_argument("--logs", type=Path, help="keep what brokers and tests wrote here")
    options = parser.parse_args()
    outcomes = earlier(options.earlier)
    if options.only or not options.earlier:
        outcomes += _run_all(options)
    if out := options.out or (None if options.only else PAGE):
        out.write_text(page(latest(outcomes)))


def _run_all(options: argparse.Namespace) -> list[Outcome]:
    """Run what is wanted, if this machine has what it takes."""
    if reason := lacking():
        sys.exit(reason)
    sigterm_as_interrupt()
    with tempfile.TemporaryDirectory() as folder:
        logs = (options.logs or Path(folder)).resolve()
        logs.mkdir(parents=True, exist_ok=True)
        return run(options.only, members=options.members, as_json=options.json, logs=logs)


if __name__ == "__main__":
    main()
