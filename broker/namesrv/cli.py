"""The command `dledger-namesrv`."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence

import trio
from rich.console import Console
from rich.markup import escape

from broker.namesrv.config import NameServerConfig, read_config
from broker.namesrv.errors import ConfigError
from broker.namesrv.server import NameServer
from dledger.runtime.stop_signals import handle_stop_signals


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a name server until it is told to stop; the exit status."""
    errors = Console(stderr=True)
    try:
        config = read_config(sys.argv[1:] if arguments is None else arguments)
    except ConfigError as error:
        errors.print(f"[red]dledger-namesrv:[/red] {escape(str(error))}", soft_wrap=True)
        return 1
    logging.basicConfig(
        level=config.log_level,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    for key in config.unknown_keys:
        errors.print(f"[yellow]dledger-namesrv:[/yellow] {escape(key)} means nothing here, ignored")
    status = 0
    try:
        trio.run(_serve, config)
    except* ConfigError as group:
        status = 1
        errors.print(f"[red]dledger-namesrv:[/red] {escape(_reason(group))}", soft_wrap=True)
    return status


def _reason(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return str(error)


async def _serve(config: NameServerConfig) -> None:
    async with trio.open_nursery() as nursery:
        handle_stop_signals(lambda _number: nursery.cancel_scope.cancel())
        address = await nursery.start(NameServer(config).run)
        others = f", with {len(config.group.peers)} others" if config.group else ""
        Console().print(
            f"[green]name server ready[/green] on {address}{others} (Ctrl-C stops it)",
            soft_wrap=True,
            highlight=False,
        )


if __name__ == "__main__":
    sys.exit(main())
