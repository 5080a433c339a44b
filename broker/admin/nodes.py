"""The nodes of one broker group, as a command line names them, and what each answers."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import trio

from broker.admin.ask import NodeAnswer, addresses_of_group, ask_all


async def addresses_of(options: argparse.Namespace) -> Sequence[str]:
    """Return the client ports that `add_nodes_of_group` has named.

    Raises:
        NobodyAnsweredError: no name server answers, or it does not know the group.
    """
    if options.brokers is not None:
        named: Sequence[str] = options.brokers
        return named
    return await addresses_of_group(options.namesrv, options.group)


def ask_nodes(options: argparse.Namespace) -> list[NodeAnswer]:
    """Ask all of them for their runtime information.

    Raises:
        NobodyAnsweredError: as `addresses_of`.
    """

    async def ask() -> list[NodeAnswer]:
        return await ask_all(await addresses_of(options))

    return trio.run(ask)
