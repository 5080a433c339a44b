"""Links as network namespaces: each node has a network stack of its own, joined by a bridge. Needs root and `ip`.

    namespace of n0: eth0 10.x.y.1 --+
    namespace of n1: eth0 10.x.y.2 --+-- bridge, in a namespace of its own --- veth in ours, 10.x.y.254
    namespace of n2: eth0 10.x.y.3 --+

Clients, name servers and the observer are where the harness is, and that is the end called "clients". Real
packets are lost here, the kernel's acknowledgements too, which no proxy can do. A directed link is cut by a
neighbour entry that names a card which does not exist: packets leave and nobody takes them. `tc netem` is not
needed.

Names carry the process id of the harness. What an earlier run left, because it was killed, is removed by the next.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from jepsen.nemeses.claims import Claims
from jepsen.processes import is_running
from jepsen.systems.api import CLIENTS, CUT, NODES_MAX, WHOLE, Link, Shape, UnsupportedShapeError

COMMAND_TIMEOUT_S: Final = 60.0
NOBODY: Final = "02:00:00:00:00:01"
"""The address of a card that does not exist."""

MTU: Final = 1500
_DEVICE: Final = "eth0"
_SWITCH: Final = "switch"
_NAMES: Final = re.compile(r"jepsen-(\d+)-\w+")
_RUN_FOLDER: Final = Path("/run/netns")


class NamespaceError(Exception):
    """A command that arranges namespaces failed; the text is the command and what it said."""


def lacking_namespaces() -> str | None:
    """Return what this machine lacks for namespaces, found out by making one; None when nothing."""
    if shutil.which("ip") is None or shutil.which("tc") is None:
        return "no commands ip and tc (iproute2)"
    if os.geteuid() != 0:
        return "network namespaces need root"
    name = f"jepsen-{os.getpid()}-probe"
    try:
        _run("ip", "netns", "add", name)
        try:
            _run("ip", "-n", name, "link", "add", "probe", "type", "bridge")
        finally:
            _run("ip", "netns", "del", name)
    except NamespaceError as error:
        return str(error)
    return None


def _remove_device(name: str) -> None:
    """Remove a device if it is there; one whose other end's namespace was removed goes by itself, a moment later."""
    there = Path("/sys/class/net", name)
    if not there.exists():
        return
    try:
        _run("ip", "link", "del", name)
    except NamespaceError:
        if there.exists():
            raise


def _run(*words: str) -> str:
    try:
        done = subprocess.run(
            words, check=True, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S
        )
    except subprocess.CalledProcessError as error:
        raise NamespaceError(f"{' '.join(words)}: {error.stderr.strip()}") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NamespaceError(f"{' '.join(words)}: {error}") from error
    return done.stdout


def remove_left_over() -> list[str]:
    """Remove namespaces of runs whose process has ended; returns their names."""
    if not _RUN_FOLDER.is_dir():
        return []
    left = [
        each.name
        for each in sorted(_RUN_FOLDER.iterdir())
        if (match := _NAMES.fullmatch(each.name)) and not is_running(int(match[1]))
    ]
    for name in left:
        _run("ip", "netns", "del", name)
    return left


class NamespaceLinks:
    """The namespaces of one group; see `jepsen.systems.api.Links`. A context manager that owns them.

    Attributes:
        harness: the address under which nodes find what runs beside the harness.
    """

    def __init__(self, names: Sequence[str]) -> None:
        assert len(names) <= NODES_MAX, "the last byte of the addresses"
        pid = os.getpid()
        self._tag = f"jepsen-{pid}"
        self._net = f"10.{200 + pid // 250 % 50}.{pid % 250}"
        self._own_device = f"jp{pid % 10**9}"
        self._number = {name: at for at, name in enumerate(names, start=1)} | {CLIENTS: 254}
        self._names = list(names)
        self._claims = Claims()
        self._has_changed = False
        self.harness = self.address(CLIENTS)

    def address(self, name: str) -> str:
        """Return the address of a node, or of the harness."""
        return f"{self._net}.{self._number[name]}"

    def prefix(self, name: str) -> list[str]:
        """Return the words that, put before a command, run it in the namespace of a node."""
        return ["ip", "netns", "exec", self._space(name)]

    def _space(self, name: str) -> str:
        return f"{self._tag}-{name}"

    def _at(self, end: str) -> tuple[list[str], str]:
        """Return the command that runs others at an end, and the name of its device there."""
        if end == CLIENTS:
            return [], self._own_device
        return self.prefix(end), _DEVICE

    # Life.

    def start(self) -> None:
        """Create the namespaces, their devices and the bridge.

        Raises:
            NamespaceError: a command failed; what was made is removed.
        """
        remove_left_over()
        try:
            switch = self._space(_SWITCH)
            _run("ip", "netns", "add", switch)
            _run("ip", "-n", switch, "link", "add", "bridge", "type", "bridge")
            _run("ip", "-n", switch, "link", "set", "bridge", "up")
            for name in self._names:
                space = self._space(name)
                _run("ip", "netns", "add", space)
                _run("ip", "-n", space, "link", "set", "lo", "up")
                self._plug(name, ["-n", space], _DEVICE)
            self._plug(CLIENTS, [], self._own_device)
        except BaseException:
            self.close()
            raise

    def _plug(self, end: str, where: list[str], device: str) -> None:
        """Join an end to the bridge."""
        switch, port = self._space(_SWITCH), f"port{self._number[end]}"
        _run("ip", *where, "link", "add", device, "type", "veth", "peer", port, "netns", switch)
        _run("ip", "-n", switch, "link", "set", port, "master", "bridge", "up")
        _run("ip", *where, "address", "add", f"{self.address(end)}/24", "dev", device)
        _run("ip", *where, "link", "set", device, "up")

    def close(self) -> None:
        """Remove the namespaces and the bridge. The processes inside must have ended."""
        _remove_device(self._own_device)
        for name in [*self._names, _SWITCH]:
            if (_RUN_FOLDER / self._space(name)).exists():
                _run("ip", "netns", "del", self._space(name))

    def __enter__(self) -> NamespaceLinks:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Links.

    def shape(self, source: str, target: str, shape: Shape, owner: str = "") -> None:
        """Cut or join a link, or limit how much leaves `source`, whoever it is for.

        Raises:
            UnsupportedShapeError: the shape is another one.
        """
        if shape not in {WHOLE, CUT, Shape(bytes_per_s=shape.bytes_per_s)}:
            raise UnsupportedShapeError(f"namespaces cannot do {shape}")
        self._has_changed = True
        self._apply((source, target), self._claims.claim((source, target), shape, owner))

    def _apply(self, link: Link, shape: Shape) -> None:
        source, target = link
        prefix, device = self._at(source)
        neighbour = [*prefix, "ip", "neigh"]
        if shape == CUT:
            _run(
                *(*neighbour, "replace", self.address(target), "lladdr", NOBODY),
                *("nud", "permanent", "dev", device),
            )
        else:
            _run(*neighbour, "flush", "to", self.address(target), "dev", device, "nud", "permanent")
        self._limit(source)

    def _limit(self, source: str) -> None:
        """Set the rate at which its device sends, the lowest that is wanted, or take it away."""
        prefix, device = self._at(source)
        rate = min(
            (each.bytes_per_s for each in self._claims.leaving(source) if each.bytes_per_s),
            default=0,
        )
        if rate:
            limit = ["rate", f"{8 * rate}bit", "burst", "16kb", "latency", "200ms"]
            _run(*prefix, "tc", "qdisc", "replace", "dev", device, "root", "tbf", *limit)
        elif "tbf" in _run(*prefix, "tc", "qdisc", "show", "dev", device):
            _run(*prefix, "tc", "qdisc", "del", "dev", device, "root")

    def replay(self, source: str, target: str, count: int) -> int:
        """Raise, as frames cannot be replayed here.

        Raises:
            UnsupportedShapeError: always.
        """
        raise UnsupportedShapeError("namespaces cannot replay frames")

    def set_plugged(self, name: str, *, is_plugged: bool) -> None:
        """Take a node's cable out of the bridge, or put it back."""
        self._has_changed = True
        port = f"port{self._number[name]}"
        _run("ip", "-n", self._space(_SWITCH), "link", "set", port, "up" if is_plugged else "down")

    def set_mtu(self, size_bytes: int) -> None:
        """Let no larger packet through any link between nodes."""
        self._has_changed = True
        for name in self._names:
            _run("ip", "-n", self._space(name), "link", "set", _DEVICE, "mtu", str(size_bytes))

    def heal(self, owner: str | None = None) -> None:
        """Undo an owner's shapes; None: restore all links, with cables and packet sizes."""
        released = self._claims.release(owner)
        if not self._has_changed or not (_RUN_FOLDER / self._space(_SWITCH)).exists():
            return
        for link, shape in released.items():
            self._apply(link, shape)
        if owner is None:
            self.set_mtu(MTU)
            for name in self._names:
                self.set_plugged(name, is_plugged=True)
            self._has_changed = False
