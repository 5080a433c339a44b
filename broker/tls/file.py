"""The file of its own that RocketMQ reads the keys of TLS from, named by `tls.config.file`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from broker.command_line import why_unreadable
from broker.properties import read_property_lines
from broker.settings.tls import CONFIG_FILE, CONFIG_FILE_OF_STOCK
from dledger.errors import ConfigError


def with_tls_file(values: Mapping[str, str], *, passes_over: str = "") -> dict[str, str]:
    """Return the values of a file of settings with those of the TLS file that it names, which win.

    Args:
        values: of the file of settings.
        passes_over: how keys of the TLS file begin that mean nothing to this process; empty: all do.

    The file that RocketMQ reads unless told otherwise may be missing.

    Raises:
        ConfigError: that file cannot be read, or other keys stand in it.
    """
    path = values.get(CONFIG_FILE, "").strip()
    if not path or (path == CONFIG_FILE_OF_STOCK and not Path(path).exists()):
        return dict(values)
    try:
        found = read_property_lines(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{CONFIG_FILE}={path} cannot be read: {why_unreadable(error)}"
        ) from error
    except ConfigError as error:
        raise ConfigError(f"{CONFIG_FILE}={path}, {error}") from error
    for each in found:
        if not each.key.startswith("tls.") or each.key == CONFIG_FILE:
            raise ConfigError(
                f"{CONFIG_FILE}={path}, line {each.line}: {each.key} is no key of TLS, and nothing else stands there"
            )
    own = (each for each in found if not passes_over or not each.key.startswith(passes_over))
    return {**values, **{each.key: each.value for each in own}}
