"""Single values of node.toml: which can be used at all, and what to say of the others. Pure.

Each becomes a line of a settings file, an address that others are given, or the name of a folder; one that would be
read there as something else is refused. It must not know what the values mean for each other (config.py).
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from typing import Final

import msgspec

from dledger import ConfigError

TAKEN_NAMES: Final = frozenset({"namesrv", "conf", "logs", "lock"})
"""Of a machine's folder, and of its other process."""

_NAME: Final = re.compile("[A-Za-z0-9][A-Za-z0-9_-]{0,62}")
_KEY: Final = re.compile("[A-Za-z][A-Za-z0-9_.-]*")
_HOST: Final = re.compile("[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
_LABEL_CHARS_MAX: Final = 63
_HOST_CHARS_MAX: Final = 253
_ERROR: Final = re.compile(r"(?P<reason>.*?)( - at `\$\.?(?P<place>.*)`)?", re.DOTALL)
_UNKNOWN: Final = "Object contains unknown field "
_MISSING: Final = "Object missing required field "


def explain(error: msgspec.ValidationError) -> str:
    """Return what is wrong, in the words of the file: `ports.namesrv: expected ...`."""
    match = _ERROR.fullmatch(str(error))
    assert match is not None, f"{error} is not read"
    reason, place = match["reason"], match["place"] or ""
    for start, verdict in ((_UNKNOWN, "is no setting"), (_MISSING, "is missing")):
        if reason.startswith(start):
            key = reason.removeprefix(start).strip("`")
            return f"{place}.{key} {verdict}" if place else f"{key} {verdict}"
    return f"{place or 'the file'}: {reason[:1].lower()}{reason[1:]}"


def check_tables(file: Mapping[str, object]) -> None:
    """Check the tables whose keys the file chooses, before they are typed: errors of types do not name such keys.

    Raises:
        ConfigError: names the key and the value.
    """
    for key in ("store", "cluster", "secret_file", "tls_config_file", "log_folder"):
        _check_line(key, file.get(key))
    for table in ("machines", "joined"):
        for name, host in _table(file.get(table)).items():
            if not isinstance(host, str):
                raise ConfigError(f"{table}.{name} is {host!r}, which is no text")
    groups = _table(file.get("group"))
    tables = {"broker": _table(file.get("broker"))}
    tables |= {f"group.{name}": _table(settings) for name, settings in groups.items()}
    for table, settings in tables.items():
        for key, value in settings.items():
            if _KEY.fullmatch(key) is None:
                raise ConfigError(f"{table}: {key!r} is no name of a setting")
            if not isinstance(value, str | bool | int):
                raise ConfigError(
                    f"{table}.{key} is {value!r}, which is neither a text nor a whole number, true or false"
                )
            _check_line(f"{table}.{key}", value)


def check_name(kind: str, name: str) -> None:
    """Raise ConfigError unless it can name a folder, and be part of a command."""
    if _NAME.fullmatch(name) is None:
        raise ConfigError(
            f"{kind} {name!r}: a name is made of up to 63 letters, digits, - and _, and begins with a letter or digit"
        )


def check_host(machine: str, host: str) -> None:
    """Raise ConfigError unless others may reach a machine at this host name or IPv4 address."""
    is_numeric = host.replace(".", "").isdigit()
    # What is no name for DNS is no error of a look-up, but of Python's encoding of it.
    is_name = len(host) <= _HOST_CHARS_MAX and all(
        0 < len(label) <= _LABEL_CHARS_MAX for label in host.split(".")
    )
    if not is_name or _HOST.fullmatch(host) is None or (is_numeric and _ipv4(host) is None):
        raise ConfigError(f"machine {machine}: {host!r} is not a host name or an IPv4 address")
    address = _ipv4(host)
    if address is not None and (address.is_unspecified or address.is_multicast):
        raise ConfigError(
            f"machine {machine}: {host} is no address that others can reach, and brokers hand it out to clients"
        )


def _ipv4(host: str) -> ipaddress.IPv4Address | None:
    try:
        return ipaddress.IPv4Address(host)
    except ValueError:
        return None


def _table(value: object) -> Mapping[str, object]:
    """Return a table; empty for what is none, whose type is an error of its own."""
    return value if isinstance(value, dict) else {}


def _check_line(place: str, value: object) -> None:
    if isinstance(value, str) and not value.isprintable():
        raise ConfigError(f"{place}: {value!r} is not one line of printable characters")
