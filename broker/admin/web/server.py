"""The console as a process: one sampler, one HTTP server, until a signal."""

from __future__ import annotations

import logging
import signal
import sys
from collections.abc import Sequence
from functools import partial
from typing import Final, cast

import hypercorn.trio
import trio
from hypercorn.config import Config
from hypercorn.typing import ASGIFramework

from broker.admin.exit_codes import EXIT_OK
from broker.admin.looks import Looks
from broker.admin.web import change_pages
from broker.admin.web.access import Access
from broker.admin.web.app import make_app
from broker.admin.web.console import Console
from broker.admin.web.sampler import Sampler
from broker.admin.web.sessions import SignIns
from broker.admin.web.web_options import WebOptions

STOP_WITHIN_S: Final = 2.0
KEEP_ALIVE_S: Final = 10.0
READ_WITHIN_S: Final = 10
HEAD_BYTES_MAX: Final = 16 * 1024


def run_console(options: WebOptions) -> int:
    """Serve until a signal; return the exit code.

    Raises:
        OSError: it cannot listen there.
    """
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(asctime)s %(message)s")
    logging.getLogger(change_pages.__name__).setLevel(logging.INFO)
    try:
        trio.run(_run, options)
    except BaseExceptionGroup as group:
        failure = group.subgroup(OSError)
        if failure is None:
            raise
        error: BaseException = failure
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        raise error from group
    return EXIT_OK


async def _run(options: WebOptions) -> None:
    """Serve until SIGINT or SIGTERM."""
    access = Access(options.token, may_change=options.may_change, is_open=options.is_open)
    sampler = Sampler(Looks(options.name_servers))
    console = Console(sampler, SignIns(access), ";".join(options.name_servers))
    stop = trio.Event()
    serve = partial(
        hypercorn.trio.serve,
        cast("ASGIFramework", make_app(console, options.host_names)),
        _config(options),
        shutdown_trigger=stop.wait,
    )
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(sampler.run)
            async with trio.open_nursery() as serving:
                places: Sequence[str] = await serving.start(serve)
                _print_start(places, options)
                async for _ in signals:
                    break
                stop.set()
            nursery.cancel_scope.cancel()


def _config(options: WebOptions) -> Config:
    """Return the settings of the HTTP server; nothing that a request has goes into a log."""
    config = Config()
    config.bind = [str(options.listen)]
    config.accesslog = None
    config.errorlog = logging.getLogger("broker.admin.web.http")
    config.include_server_header = False
    config.graceful_timeout = STOP_WITHIN_S
    config.keep_alive_timeout = KEEP_ALIVE_S
    config.read_timeout = READ_WITHIN_S
    config.h11_max_incomplete_size = HEAD_BYTES_MAX
    return config


def _print_start(places: Sequence[str], options: WebOptions) -> None:
    """Print where the console is, and what those who find it can do."""
    lines = [f"the console is at {place}" for place in places]
    if options.is_token_new:
        lines.append(f"the token to sign in with, shown this once: {options.token}")
    if not options.may_change:
        lines.append("nothing can be changed there: that needs --changes")
    if not options.is_open:
        lines.append(
            "BEYOND THIS MACHINE: the token and all messages cross the network as they are; "
            "put a proxy with TLS before it, or use a tunnel"
        )
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    sys.stdout.flush()
