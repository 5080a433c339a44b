"""The command `dledger-namesrv`.

Exit status: 0 stopped in order; 1 it could not start or has failed, with one line that says why; 2 the command
line or a setting is wrong.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence

import trio
from rich.console import Console
from rich.markup import escape

from broker.command_line import EXIT_FAILED, EXIT_OK, EXIT_USAGE, innermost, print_line
from broker.namesrv.config import NameServerConfig, read_config
from broker.namesrv.errors import NameServerConfigError
from broker.namesrv.server import NameServer
from dledger.errors import ConfigError
from dledger.runtime.descriptors import raise_limit
from dledger.runtime.stop_signals import handle_stop_signals


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a name server until a signal stops it; return the exit status."""
    errors = Console(stderr=True)
    try:
        config = read_config(sys.argv[1:] if arguments is None else arguments)
        config.log.start()
    except (NameServerConfigError, ConfigError) as error:
        errors.print(f"[red]dledger-namesrv:[/red] {escape(str(error))}", soft_wrap=True)
        return EXIT_USAGE
    for warning in config.warnings:
        print_line(errors, f"[yellow]dledger-namesrv:[/yellow] {escape(warning)}")
    status = EXIT_OK
    try:
        trio.run(_serve, config)
    except* NameServerConfigError as group:
        status = EXIT_FAILED
        errors.print(f"[red]dledger-namesrv:[/red] {escape(str(innermost(group)))}", soft_wrap=True)
    return status


async def _serve(config: NameServerConfig) -> None:
    raise_limit()
    async with trio.open_nursery() as nursery:
        handle_stop_signals(lambda _number: nursery.cancel_scope.cancel())
        address = await nursery.start(NameServer(config).run)
        # A full collection would look at all that was imported, some 10 ms of the loop. It stays.
        gc.freeze()
        others = f", with {len(config.group.peers)} others" if config.group else ""
        print_line(
            Console(soft_wrap=True, highlight=False),
            f"[green]name server ready[/green] on {address}{others} (Ctrl-C stops it)",
        )


if __name__ == "__main__":
    sys.exit(main())
