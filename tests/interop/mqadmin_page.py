"""Writes docs/mqadmin.md from a run of mqadmin's subcommands against a group of three members.

    python -m tests.interop.mqadmin_page [--tools .interop] [--out docs/mqadmin.md] [--printed FOLDER]

`--tools` has a folder `tools-RELEASE/jars` for each release, and `mqadmin/classes` with the driver, as `make interop`
makes them; `--printed` gets what each subcommand printed.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

from jepsen.processes import SMALL_SEGMENTS, Group
from tests.interop.conftest import RunningGroup
from tests.interop.mqadmin import (
    GROUP,
    OFFLINE,
    RELEASES,
    ROOT,
    TOPIC,
    Call,
    Mqadmin,
    Outcome,
    Verdict,
    calls_for,
    outcome_of,
    scene,
)

HEAD = """# mqadmin

Every subcommand of Apache RocketMQ's `mqadmin`, unmodified from Maven Central, against a group of three members with a
connected producer and consumer, which write message trace. Made by `python -m tests.interop.mqadmin_page` from such a
run; do not edit. What is refused shows code and reason of the answer. What a broker answers to each request code stands
in [requests.md](requests.md); `dledger-admin` does what an operator does daily, without a JVM
([operations-replicas.md](operations-replicas.md)).

"""

SENTENCE_CHARS_MAX = 160
SETTINGS = f"{SMALL_SEGMENTS}traceTopicEnable=true\n"


def prepare(folder: Path) -> None:
    """Write the files that some subcommands read."""
    topic = {"topicName": "mqadmin-listed", "readQueueNums": 4, "writeQueueNums": 4, "perm": 6}
    (folder / "topics.json").write_text(json.dumps([topic]))
    (folder / "groups.json").write_text(json.dumps([{"groupName": "mqadmin-listed"}]))
    (folder / "broker.conf").write_text("brokerName=other\n")


def run(
    group: RunningGroup, tools: Path, release: str, printed_to: Path | None
) -> list[tuple[Call, Outcome]]:
    """Run every subcommand of a release."""
    leader = group.wait_leader()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepare(folder)
        with (
            Mqadmin(
                tools / f"tools-{release}" / "jars", tools / "mqadmin" / "classes", folder
            ) as mqadmin,
            scene(
                group.namesrv, leader.address, "broker-a", "DefaultCluster", folder, trace=True
            ) as made,
        ):
            rows = []
            for call in calls_for(release, mqadmin.names()):
                if call.not_run:
                    rows.append((call, Outcome(Verdict.NOT_RUN, call.not_run)))
                else:
                    printed = mqadmin.run(made.words(call))
                    rows.append((call, outcome_of(call, printed)))
                    if printed_to is not None:
                        (printed_to / f"{release}-{call.name}.txt").write_text(printed)
                told = rows[-1][1]
                sys.stdout.write(f"{release} {call.name}: {told.verdict.value} {told.sentence}\n")
                sys.stdout.flush()
            return rows


def page(rows: dict[str, list[tuple[Call, Outcome]]]) -> str:
    """Return the page."""
    lines = []
    for release, found in rows.items():
        counts = {each: sum(one.verdict is each for _, one in found) for each in Verdict}
        total = ", ".join(f"{count} {each.value}" for each, count in counts.items() if count)
        lines += [f"## {release}", "", f"{len(found)} subcommands: {total}.", ""]
        lines += ["| subcommand | outcome | |", "|---|---|---|"]
        for call, one in found:
            sentence = " ".join(one.sentence.replace("|", "/").split())[:SENTENCE_CHARS_MAX]
            lines.append(f"| `{call.name}` | {one.verdict.value} | {sentence or call.remark} |")
        lines.append("")
    return HEAD + "\n".join(lines).rstrip() + "\n"


def main() -> None:
    """Run everything, and write the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--tools", type=Path, default=ROOT / ".interop")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "mqadmin.md")
    parser.add_argument("--printed", type=Path)
    options = parser.parse_args()
    rows = {}
    for release in RELEASES:
        with (
            tempfile.TemporaryDirectory() as store,
            Group(Path(store), settings=SETTINGS) as processes,
        ):
            processes.start()
            processes.wait_listening()
            group = RunningGroup(processes)
            group.create_topic(TOPIC)
            create_groups(group)
            rows[release] = run(group, options.tools.resolve(), release, options.printed)
    options.out.write_text(page(rows))


def create_groups(group: RunningGroup) -> None:
    """Create the groups that subcommands name."""
    for name in (GROUP, OFFLINE, "mqadmin-gone"):
        body = json.dumps({"groupName": name}).encode()
        group.ask(200, {}, body)


if __name__ == "__main__":
    main()
