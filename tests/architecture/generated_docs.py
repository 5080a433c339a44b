"""Pages that are made from registries in the code: `make docs` rewrites them, a test holds them current."""

from __future__ import annotations

from pathlib import Path

import msgspec

from dledger.errors import DLedgerError, registry
from dledger_mq.remoting.codes import RESPONSES
from jepsen.checklist.command import RecordedResults
from jepsen.checklist.page import page
from tests.architecture.admin_page import admin_page
from tests.architecture.broker_conf_page import broker_conf_page
from tests.architecture.requests_page import requests_page

ROOT = Path(__file__).resolve().parents[2]
ERRORS = ROOT / "docs/errors.md"
FAULTS = ROOT / "docs/faults.md"
REQUEST_PAGE = ROOT / "docs/requests.md"
BROKER_CONF = ROOT / "docs/broker-conf.md"
ADMIN = ROOT / "docs/admin.md"

HEAD = """# Errors, and what you may conclude

Made from `dledger/errors.py` and `dledger_mq/remoting/codes.py` by `make docs`; do not edit.

*Definite*: it did not happen and never will. *Retriable*: trying again, perhaps at another node, can help.
An error that is not definite may have happened, or may yet: retrying may do it twice.

## The log (`dledger`, `dledger.Client`)

| code | class | definite | retriable | meaning |
|---|---|---|---|---|
"""

BROKER_HEAD = """
## The broker (RocketMQ response codes)

| code | name | definite | retriable | meaning |
|---|---|---|---|---|
"""


def yes(value: bool) -> str:
    return "yes" if value else "no"


def first_sentence(kind: type[DLedgerError]) -> str:
    return (kind.__doc__ or "").strip().splitlines()[0]


def errors_page() -> str:
    """The whole page."""
    log_rows = [
        f"| `{code}` | {kind.__name__} | {yes(kind.definite)} | {yes(kind.retriable)} | {first_sentence(kind)} |"
        for code, kind in sorted(registry().items())
        if kind is not DLedgerError
    ]
    broker_rows = [
        f"| {row.code.value} | {row.code.name} | {yes(row.definite)} | {yes(row.retriable)} | {row.prose} |"
        for row in sorted(RESPONSES.values(), key=lambda row: row.code.value)
    ]
    return HEAD + "\n".join(log_rows) + "\n" + BROKER_HEAD + "\n".join(broker_rows) + "\n"


def faults_page() -> str:
    """The whole page: the rows, and what the last run of each recorded."""
    recorded = msgspec.json.decode((ROOT / "docs/faults.json").read_bytes(), type=RecordedResults)
    return page(recorded.rows, seen_on=recorded.seen_on)


if __name__ == "__main__":
    ERRORS.write_text(errors_page())
    FAULTS.write_text(faults_page())
    REQUEST_PAGE.write_text(requests_page())
    BROKER_CONF.write_text(broker_conf_page())
    ADMIN.write_text(admin_page())
