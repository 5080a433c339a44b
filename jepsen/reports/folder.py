"""The folder of a run: results.json, the history in two notations, logs of the nodes, report.html.

results.json       verdict, settings, counts, anomalies: everything that `check` needs to judge again
history.jsonl      the operations, written while the run goes on
history.edn        the same for other checkers
report.html        for people
nodes/NAME.log     what each process said
nodes/NAME/        its store; kept when the run is not valid, or when that was asked for. Of a machine, its stores and,
                   always kept, the logs of its processes
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

import msgspec

from jepsen.history.edn import history_edn
from jepsen.history.ops import Op, read_ops
from jepsen.reports.page import page
from jepsen.reports.summary import Summary, summary_of
from jepsen.run import HISTORY, NODES, RunResult

RESULTS: Final = "results.json"
EDN: Final = "history.edn"
REPORT: Final = "report.html"
LOGS: Final = "logs"


class NoReportError(Exception):
    """A folder holds no run that could be judged; the message says what is missing."""


def write_folder(result: RunResult, *, keep_stores: bool) -> Summary:
    """Write everything beside the history, which stands there already."""
    folder, summary = result.folder, summary_of(result)
    encoded = msgspec.json.format(msgspec.json.encode(summary), indent=2)
    (folder / RESULTS).write_bytes(encoded + b"\n")
    (folder / EDN).write_text(history_edn(result.ops))
    (folder / REPORT).write_text(page(summary, result.ops))
    if not keep_stores and result.valid is not False:
        _remove_stores(folder / NODES)
    return summary


def read_folder(folder: Path) -> tuple[Summary, list[Op]]:
    """Read the folder that a run left.

    Raises:
        NoReportError: the folder does not hold it, or something else.
    """
    try:
        summary = msgspec.json.decode((folder / RESULTS).read_bytes(), type=Summary)
        with (folder / HISTORY).open() as lines:
            return summary, list(read_ops(lines))
    except FileNotFoundError as error:
        raise NoReportError(f"{folder} holds no run: there is no {error.filename}") from error
    except OSError as error:
        raise NoReportError(f"{folder} holds no run: {error.filename}: {error.strerror}") from error
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise NoReportError(f"{folder} holds no run that can be read: {error}") from error


def _remove_stores(nodes: Path) -> None:
    """Remove what nodes stored; of a machine the logs of its processes stay."""
    for path in nodes.iterdir() if nodes.is_dir() else ():
        if not path.is_dir():
            continue
        inside = list(path.iterdir()) if (path / LOGS).is_dir() else [path]
        for each in inside:
            if each.is_dir() and each.name != LOGS:
                shutil.rmtree(each, ignore_errors=True)
