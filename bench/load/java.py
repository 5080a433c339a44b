"""Apache's Java client as a generator: where `make interop` has put it, what it lacks, and how it is started."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.load.running import RoundPlan

VERSION: Final = "4.9.8"
HEAP_MB: Final = 512


@dataclass(frozen=True, slots=True)
class ClientLoad:
    """Sends of one client.

    Attributes:
        mode: sync, a thread for each in flight; or async.
        namesrv: where it asks for the route.
        topic: of all messages.
        in_flight: sends that wait for their answer.
        body_bytes: of a message.
    """

    mode: str
    namesrv: str
    topic: str
    in_flight: int
    body_bytes: int


def lacking_client(interop: Path) -> str | None:
    """Say what this machine lacks for the client; None: nothing."""
    if shutil.which("java") is None:
        return "no Java on this machine"
    if not (interop / f"java-{VERSION}" / "classes" / "JavaLoad.class").exists():
        return f"the Java client {VERSION} is not in {interop} (make interop)"
    return None


def client_command(load: ClientLoad, pace: RoundPlan, *, interop: Path, home: Path) -> list[str]:
    """Return the command that runs a load; the library logs below `home`."""
    folder = interop.absolute() / f"java-{VERSION}"
    return [
        *("java", f"-Xmx{HEAP_MB}m", "-cp", f"{folder}/classes:{folder}/jars/*", "JavaLoad"),
        *(load.mode, load.namesrv, load.topic, str(load.in_flight), str(load.body_bytes)),
        *map(str, (pace.warm_up_s, pace.seconds, pace.rounds)),
        str(home),
    ]
