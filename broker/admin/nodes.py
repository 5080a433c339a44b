"""The nodes of one broker group, as a command line names them, and what each answers."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import trio

from broker.admin.ask import NodeAnswer, addresses_of_group, ask_all, brokers_of
from broker.admin.failures import NotThereError


async def addresses_of(options: argparse.Namespace) -> Sequence[str]:
    """Return the client ports that `add_nodes_of_group` has named.

    Raises:
        NobodyAnsweredError: no name server answers, or it does not know the group.
    """
    if options.brokers is not None:
        named: Sequence[str] = options.brokers
        return named
    return await addresses_of_group(options.namesrv, options.group)


async def all_addresses(options: argparse.Namespace) -> list[str]:
    """Return the client ports of all nodes, or of those of the broker groups that `--broker` names.

    Raises:
        NobodyAnsweredError: no name server answers.
        NotThereError: it does not know a broker group that was named.
    """
    if options.brokers is not None:
        return list(options.brokers)
    known = await brokers_of(options.namesrv)
    wanted = known if options.broker is None else options.broker
    unknown = sorted(set(wanted) - set(known))
    if unknown or not wanted:
        raise NotThereError(
            f"the name servers know no broker group {', '.join(unknown)}; "
            f"known are: {', '.join(sorted(known)) or 'none'}"
        )
    return [
        address
        for name in sorted(wanted)
        for _, address in sorted(known[name].broker_addrs.items())
    ]


def ask_nodes(options: argparse.Namespace) -> list[NodeAnswer]:
    """Ask all of them for their runtime information.

    Raises:
        NobodyAnsweredError: as `addresses_of`.
    """

    async def ask() -> list[NodeAnswer]:
        return await ask_all(await addresses_of(options))

    return trio.run(ask)
