"""The command `dledger-proxy`.

Exit status: 0 stopped in order; 1 it could not start, with one line that says why; 2 the command line or a file that it
names is wrong.
"""

from __future__ import annotations

import argparse
import ipaddress
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import anyio
from rich.console import Console

from broker.access.errors import AccessRulesError
from broker.admin.credentials_option import add_credentials_option, credentials_of
from broker.admin.tls_options import add_tls_options, tls_of
from broker.command_line import (
    EXIT_FAILED,
    EXIT_OK,
    SERVER_EXIT_CODES,
    innermost,
    print_error,
    print_line,
    run_command,
    why_unreadable,
)
from broker.log_output import LogOutput, add_log_options
from dledger.errors import ConfigError
from dledger.version import __version__
from dledger_mq.client.errors import ClientUsageError
from dledger_mq.client.name_servers import parse_name_servers

PROGRAM: Final = "dledger-proxy"
PORT: Final = 8081
"""Apache's proxy has the same."""

_STRANGERS: Final = "whoever reaches this address may do all that the proxy's account may: it does not ask who they are"
_EPILOG: Final = f"""{SERVER_EXIT_CODES}
example:
  dledger-proxy --namesrv 127.0.0.1:9876
  (and clients of RocketMQ 5 with the endpoints 127.0.0.1:{PORT})
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a proxy until a signal stops it; return the exit status."""
    console = Console(stderr=True, soft_wrap=True)
    options = _parser().parse_args(arguments)
    return run_command(console, PROGRAM, lambda: _run(console, options))


def _parser() -> argparse.ArgumentParser:
    """Return the command line."""
    parser = argparse.ArgumentParser(
        prog=PROGRAM,
        description="The door for RocketMQ 5's gRPC clients, in front of broker groups.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--version", action="version", version=f"%(prog)s {__version__}")
    add(
        "-n",
        "--namesrv",
        required=True,
        metavar="HOST:PORT",
        help='name servers, several joined with ";"',
    )
    add(
        "--listen", default=f"127.0.0.1:{PORT}", metavar="HOST:PORT",
        help="where clients connect (default: %(default)s)",
    )  # fmt: skip
    add(
        "--acl", metavar="FILE",
        help="let in only accounts of this plain_acl.yml, with the rights that it gives them (default: everybody)",
    )  # fmt: skip
    add("--cert", metavar="FILE", help="encrypt clients' connections with this certificate, PEM")
    add("--key", metavar="FILE", help="its key, PEM (default: in --cert)")
    add_tls_options(parser)
    add_credentials_option(parser)
    add_log_options(parser, level="warning")
    return parser


def _run(console: Console, options: argparse.Namespace) -> int:
    """Serve until a signal comes.

    Raises:
        ConfigError: an option or a file that it names is wrong, or grpcio is not installed.
    """
    try:
        from broker.proxy.server import PortTakenError, ProxyConfig, open_proxy
    except ImportError as error:
        if (error.name or "").partition(".")[0] not in ("grpc", "google"):
            raise
        text = f"it needs {error.name}, which comes with the extra `grpc` (docs/installing.md)"
        raise ConfigError(text) from error
    config = ProxyConfig(
        _address(options.listen),
        _name_servers(options.namesrv),
        _certificate(options),
        tls_of(options),
        credentials_of(options),
        None if options.acl is None else Path(options.acl),
    )
    LogOutput.of(options).start()
    if options.acl is None and not _is_loopback(options.listen):
        print_line(console, f"[yellow]{PROGRAM}:[/yellow] {options.listen}: {_STRANGERS}")

    async def serve() -> None:
        with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            async with open_proxy(config) as port:
                address = f"{options.listen.rpartition(':')[0]}:{port}"
                said = f"[green]proxy ready[/green] on {address} (Ctrl-C stops it)"
                print_line(Console(soft_wrap=True, highlight=False), said)
                async for _ in signals:
                    return

    try:
        anyio.run(serve, backend="asyncio")
    except AccessRulesError as error:
        raise ConfigError(f"--acl: {error}") from error
    except (PortTakenError, BaseExceptionGroup) as error:
        if not isinstance(innermost(error), PortTakenError):
            raise
        print_error(console, PROGRAM, str(innermost(error)))
        return EXIT_FAILED
    return EXIT_OK


def _address(listen: str) -> str:
    """Return host:port as it was given.

    Raises:
        ConfigError: it is none; grpcio would take a port of its own choice.
    """
    host, _, port = listen.rpartition(":")
    if not host or not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise ConfigError(f"--listen {listen!r} is not HOST:PORT")
    return listen


def _name_servers(text: str) -> tuple[str, ...]:
    try:
        return parse_name_servers(text)
    except ClientUsageError as error:
        raise ConfigError(str(error)) from error


def _certificate(options: argparse.Namespace) -> tuple[bytes, bytes] | None:
    if options.cert is None:
        if options.key is not None:
            raise ConfigError("--key needs --cert")
        return None
    return _read(options.cert, "--cert"), _read(options.key or options.cert, "--key")


def _read(path: str, option: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"{option} {path} cannot be read: {why_unreadable(error)}") from error


def _is_loopback(listen: str) -> bool:
    host = listen.rpartition(":")[0].strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


if __name__ == "__main__":
    sys.exit(main())
