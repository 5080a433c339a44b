"""The generator in C: whether it can be had here, what it is asked to do, and how it is started.

`generator.c` is compiled when it is first needed, with the C compiler of the machine, into the user's cache. It reads a
plan: the number of templates in a line; then of each, in a line, the size of its frame, where its opaque number is, how
many keys it has and where; and the frame. It uses the templates in turn.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Final

from bench.load.running import RoundPlan
from bench.loadgen import FrameTemplate

SOURCE: Final = Path(__file__).with_name("generator.c")
COMPILE_TIMEOUT_S: Final = 240.0
NO_COMPILER: Final = "no C compiler (cc) for the load generator"


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestLoad:
    """Requests that are in flight all the time.

    Attributes:
        templates: used in turn.
        connections: to the server.
        in_flight: of each connection.
        per_request: messages in each request; None: the records of the replies are counted.
        per_reply: of which a full reply has so many.
        is_oneway: nothing is replied.
    """

    templates: Sequence[FrameTemplate]
    connections: int = 1
    in_flight: int = 1
    per_request: int | None = 1
    per_reply: int = 0
    is_oneway: bool = False


class CompileError(Exception):
    """The generator cannot be compiled here; the text is the compiler's."""


def lacking_generator() -> str | None:
    """Return what this machine lacks, or None when the generator is there or could be made."""
    if shutil.which("cc") is None:
        return NO_COMPILER
    try:
        program()
    except CompileError as error:
        return str(error)
    return None


@functools.cache
def program() -> Path:
    """Return the compiled generator, made unless it is in the cache.

    Raises:
        CompileError: it cannot be compiled.
    """
    source = SOURCE.read_bytes()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dledger-bench"
    digest = blake2b(source, digest_size=8).hexdigest()
    path = cache / f"generator-{os.uname().machine}-{digest}"
    if not path.exists():
        fresh = path.with_suffix(f".{os.getpid()}")
        command = ["cc", "-O2", "-o", str(fresh), str(SOURCE)]
        try:
            cache.mkdir(parents=True, exist_ok=True)
            subprocess.run(
                command, check=True, capture_output=True, text=True, timeout=COMPILE_TIMEOUT_S
            )
        except (OSError, subprocess.SubprocessError) as error:
            words = str(getattr(error, "stderr", None) or error).strip().splitlines()
            raise CompileError(f"{SOURCE.name} cannot be compiled: {words[0]}") from error
        fresh.replace(path)
    return path


def write_plan(path: Path, templates: Sequence[FrameTemplate]) -> None:
    """Write the plan that the generator reads."""
    with path.open("wb") as file:
        file.write(b"%d\n" % len(templates))
        for template in templates:
            layout = template.layout()
            numbers = (len(layout.frame), layout.opaque_at, len(layout.keys_at), *layout.keys_at)
            file.write(" ".join(map(str, numbers)).encode() + b"\n" + layout.frame)


def generator_command(
    plan: Path, address: tuple[str, int], load: RequestLoad, pace: RoundPlan
) -> list[str]:
    """Return the command that runs a load whose plan is written.

    The keys begin with the time, so that no two runs send the same: a repeated key would be a repeated send.
    """
    return [
        str(program()),
        str(plan),
        address[0],
        *map(str, (address[1], load.connections, load.in_flight)),
        *map(str, (pace.warm_up_s, pace.seconds, pace.rounds)),
        str(time.time_ns()),
        str(int(load.is_oneway)),
    ]
