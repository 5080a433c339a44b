"""The subcommand `web`: its options, the token, and where it listens. What serves pages is loaded only when it runs."""

from __future__ import annotations

import argparse
import ipaddress
import os
from typing import Final

from broker.admin.command import Command
from broker.admin.exit_codes import EXIT_UNKNOWN, EXIT_USAGE
from broker.admin.options import add_namesrv
from broker.admin.printing import print_error
from broker.admin.web.access import TOKEN_LENGTH_MIN, make_token
from broker.admin.web.web_options import WebOptions
from broker.command_line import read_secret
from dledger import ConfigError
from dledger_mq.net.address import Address, parse_address

VARIABLE: Final = "DLEDGER_WEB_TOKEN"
"""Of the environment, with the token."""

LISTEN: Final = Address("127.0.0.1", 8088)

_EXTRA: Final = frozenset({"hypercorn", "jinja2", "starlette"})


def _add_options(command: argparse.ArgumentParser) -> None:
    """Add its options; what is served without any only shows, on this machine."""
    add_namesrv(command, required=True)
    command.add_argument(
        "--listen",
        type=_listen,
        default=LISTEN,
        metavar="[HOST:]PORT",
        help=f"where browsers reach it ({LISTEN}); beyond loopback looking needs the token, too",
    )
    command.add_argument(
        "--host-name",
        action="append",
        metavar="NAME",
        help="a name by which browsers may reach it, beside addresses and localhost; may be given several times",
    )
    command.add_argument(
        "--changes",
        action="store_true",
        help="let those who sign in with the token change offsets and send dead letters again",
    )
    command.add_argument(
        "--token-file",
        metavar="FILE",
        help=f"its first line is the token, {TOKEN_LENGTH_MIN} characters or more; else {VARIABLE} has it, "
        "else one is made where it is needed, and printed once",
    )


def run_web(options: argparse.Namespace) -> int:
    """Serve the console until a signal; return the exit code.

    Raises:
        ConfigError: the token cannot be read, or is too short.
    """
    try:
        from broker.admin.web.server import run_console
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in _EXTRA:
            raise
        text = f"the console needs {missing}, which comes with the extra `web` (docs/installing.md)"
        return _fail(text, EXIT_USAGE)
    try:
        return run_console(_web_options(options))
    except OSError as error:
        return _fail(f"cannot listen on {options.listen}: {error.strerror or error}", EXIT_UNKNOWN)


def _web_options(options: argparse.Namespace) -> WebOptions:
    """Return the options, with the token from where it is given.

    Raises:
        ConfigError: it cannot be read, or is too short.
    """
    is_open = _is_loopback(options.listen.host)
    token = os.environ.get(VARIABLE) or None
    if options.token_file is not None:
        token = read_secret(options.token_file, "--token-file")
    if token is not None and len(token) < TOKEN_LENGTH_MIN:
        raise ConfigError(f"the token has {len(token)} characters, and needs {TOKEN_LENGTH_MIN}")
    is_needed = options.changes or not is_open
    is_new = token is None and is_needed
    return WebOptions(
        options.namesrv,
        options.listen,
        tuple(options.host_name or ()),
        make_token() if is_new else token,
        is_new,
        options.changes,
        is_open,
    )


def _listen(text: str) -> Address:
    """Read where to listen.

    Raises:
        argparse.ArgumentTypeError: it is no address.
    """
    try:
        return parse_address(text, default_host=LISTEN.host)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _fail(text: str, exit_code: int) -> int:
    print_error(text)
    return exit_code


WEB = Command(
    "web",
    "a console in the browser: cluster, topics, consumer groups, messages, charts",
    _add_options,
    run_web,
    "web -n 127.0.0.1:9876",
    details="It only shows, unless --changes is given. docs/console.md says who can reach it.",
)
