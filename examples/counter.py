"""A counter that three nodes agree on (docs/embedding.md): run it with n0, n1 and n2, and type numbers into any."""

import sys
from collections.abc import Iterator, Sequence

import trio

from dledger import NO_INDEX, Entry, EntryKind, Index, LogConfig, LogServer, OutcomeUnknownError

PEERS = "n0-127.0.0.1:7100;n1-127.0.0.1:7101;n2-127.0.0.1:7102"


class Counter:
    applied_index, value = NO_INDEX, 0

    def apply(self, entries: Sequence[Entry]) -> None:
        for entry in entries:
            if entry.kind is EntryKind.NORMAL:
                self.value += int(entry.body)
            self.applied_index = entry.index

    def digest(self) -> int:
        return self.value & 0xFFFFFFFF

    def snapshot(self) -> Iterator[bytes]:
        return iter([b"%d %d" % (self.applied_index, self.value)])

    def restore(self, chunks: Iterator[bytes]) -> None:
        index, self.value = map(int, b"".join(chunks).split())
        self.applied_index = Index(index)


async def main(node_id: str, peers: str = PEERS) -> None:
    counter = Counter()
    server = LogServer(LogConfig.for_member(node_id, peers, f"data/counter-{node_id}"), counter)
    async with trio.open_nursery() as nursery:
        await nursery.start(server.run)
        async for line in trio.wrap_file(sys.stdin):
            try:
                await server.forwarder.append(b"%d" % int(line), timeout_s=10)
                print(counter.value, flush=True)
            except OutcomeUnknownError as error:  # a RefusedError surely did not happen
                print(f"perhaps added: {error}", flush=True)
        await server.drain()
        nursery.cancel_scope.cancel()


if __name__ == "__main__":
    trio.run(main, *sys.argv[1:])
