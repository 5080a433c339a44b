"""docs/broker-conf.md, made from the table of keys and from what a broker reads."""

from __future__ import annotations

from collections.abc import Iterable

from broker.namesrv import conf_keys as namesrv
from broker.server.config import read_settings
from broker.server.settings.honoured import HONOURED
from broker.server.settings.refused import REFUSED
from broker.server.settings.table import BROKER_KEYS, NEEDLESS
from broker.server.settings.values import ReadKey
from broker.settings.keys import HonouredKey, Key, NeedlessKeys, RefusedKey, ValueKind

HEAD = """# Every key of broker.conf

Made from `broker/server/settings` by `make docs`; do not edit. How files and the command line are read stands in
[configuration.md](configuration.md).

RocketMQ's keys are those of `BrokerConfig`, `MessageStoreConfig`, `NettyServerConfig`, `NettyClientConfig` and, in
5.3.3, `AuthConfig`, {in_49} in 4.9.8 and {in_53} in 5.3.3, with their defaults there; `-`: that release has none.
`by cores`: the machine's processors decide. A key that is in neither release is ours. Of {total} keys {honoured} are
honoured, {refused} are refused unless they ask for nothing, and {needless} have no meaning here; one that stands in no
table is refused, with the nearest name.

## Honoured

*Changes*: `by a start`, or while brokers run, with `mqadmin updateBrokerConfig`
([configuration.md](configuration.md#settings-that-change-while-a-broker-runs)).
"""

REFUSED_HEAD = """
## Refused

A start is refused, also with `--lenient`, unless the value is one of the accepted ones, which ask for nothing. Every
key that begins with `tls` or speaks of another protection, and is not listed, is refused like these.

| key | accepted | 4.9.8 | 5.3.3 | why others are refused |
|---|---|---|---|---|
"""

NEEDLESS_HEAD = """
## Without meaning here

Such a key is read, a value of the wrong form is refused, and a start says in a line each that it is not used, and why.
"""


NAME_SERVER_HEAD = """
## The name server

The keys of a namesrv.conf: `NamesrvConfig`, `NettyServerConfig` and `NettyClientConfig`. The command line stands in
[nameserver.md](nameserver.md).

### Honoured by the name server

| key | here | 4.9.8 | 5.3.3 | meaning |
|---|---|---|---|---|
"""

NAME_SERVER_REFUSED = """
### Refused by the name server

| key | accepted | 4.9.8 | 5.3.3 | why others are refused |
|---|---|---|---|---|
"""


def broker_conf_page() -> str:
    """The whole page."""
    asked = read_settings({"brokerName": "broker-a", "storePathRootDir": "/data"}, {}).asked
    honoured = [row for part in HONOURED.values() for row in part]
    keys = BROKER_KEYS.keys
    text = HEAD.format(
        in_49=sum(key.in_49 is not None for key in keys),
        in_53=sum(key.in_53 is not None for key in keys),
        total=len(keys),
        honoured=len(honoured),
        refused=len(REFUSED),
        needless=sum(len(group.keys) for group in NEEDLESS),
    )
    for title, rows in HONOURED.items():
        text += f"\n### {title}\n\n| key | here | 4.9.8 | 5.3.3 | meaning | changes |\n|---|---|---|---|---|---|\n"
        text += "".join(_honoured_row(row, asked[row.key.name]) for row in rows)
    text += REFUSED_HEAD
    text += "".join(_refused_row(row) for row in REFUSED)
    text += NEEDLESS_HEAD
    text += _needless(NEEDLESS, "###")
    text += NAME_SERVER_HEAD
    for row in namesrv.HONOURED:
        cells = f"{row.shown_default or '-'} | {_stock(row.key)} | {row.meaning}"
        text += f"| `{row.key.name}` | {cells} |\n"
    text += NAME_SERVER_REFUSED + "".join(_refused_row(row) for row in namesrv.REFUSED)
    text += _needless(namesrv.NEEDLESS, "####")
    return text


def _refused_row(row: RefusedKey) -> str:
    accepted = ", ".join(f"`{value}`" if value else "nothing" for value in row.accepts)
    note = f" (accepted: {row.note})" if row.note else ""
    return f"| `{row.key.name}` | {accepted} | {_stock(row.key)} | {row.reason}{note} |\n"


def _needless(groups: Iterable[NeedlessKeys], mark: str) -> str:
    text = ""
    for group in groups:
        text += f"\n{mark} {group.what}\n\n{_sentence(group.reason)}\n\n"
        text += "| key | 4.9.8 | 5.3.3 |\n|---|---|---|\n"
        text += "".join(f"| `{key.name}` | {_stock(key)} |\n" for key in group.keys)
    return text


def _honoured_row(row: HonouredKey, asked: ReadKey) -> str:
    default = row.shown_default or (f"`{asked.default}`" if asked.default else "none")
    values = f"; {asked.values}" if asked.values and row.key.kind is not ValueKind.FLAG else ""
    unit = f" {row.unit}" if row.unit else ""
    return f"| `{row.key.name}` | {default}{unit}{values} | {_stock(row.key)} | {row.meaning} | {_changes(row)} |\n"


def _changes(row: HonouredKey) -> str:
    return "by a start" if row.scope is None else f"running, on {row.scope.value}"


def _stock(key: Key) -> str:
    """The two cells of RocketMQ's defaults."""
    return " | ".join(
        "-" if value is None else f"`{value}`" if value else "empty"
        for value in (key.in_49, key.in_53)
    )


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."
