"""Apache's C++ client: where it is installed, what it lacks, and the command that runs `cpp_worker.py` with it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from jepsen.clients.foreign import ForeignClient

ROOT: Final = Path(__file__).resolve().parents[2]
ENVIRONMENT: Final = ROOT / ".interop" / "cpp"
WORKER: Final = Path(__file__).with_name("cpp_worker.py")
REQUIREMENT: Final = "rocketmq==0.4.4"
INSTALL_TIMEOUT_S: Final = 120


def python() -> Path:
    """Return the interpreter of the C++ client's environment, which `lacking` says may be missing."""
    return ENVIRONMENT / "bin" / "python"


def lacking() -> str | None:
    """Say what this machine lacks for the C++ client; None when it is installed."""
    if (ENVIRONMENT / ".ready").exists() and python().exists():
        return None
    return f"the C++ client (PyPI {REQUIREMENT}) is not installed: make interop"


def install(say: Callable[[str], None]) -> bool:
    """Make the client's environment if it is missing; return whether it exists now.

    Some machines cannot have it (it is a binary wheel for x86_64 with glibc); the reason is said.
    """
    if lacking() is None:
        return True
    say(f"installing the C++ client (PyPI {REQUIREMENT}) into {ENVIRONMENT.relative_to(ROOT)}")
    steps = (
        [sys.executable, "-m", "venv", str(ENVIRONMENT)],
        [
            *(str(python()), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"),
            *("--only-binary", ":all:", REQUIREMENT),
        ],
        [str(python()), "-c", "import rocketmq"],
    )
    for step in steps:
        try:
            subprocess.run(step, check=True, capture_output=True, timeout=INSTALL_TIMEOUT_S)
        except (subprocess.SubprocessError, OSError) as error:
            output = getattr(error, "stderr", None) or b""
            last = output.decode(errors="replace").strip().splitlines()[-1:] or [str(error)]
            say(f"the C++ client cannot be installed here, going on without it: {last[0]}")
            return False
    (ENVIRONMENT / ".ready").touch()
    return True


CPP: Final = ForeignClient("cpp", "the C++ client", lambda: [str(python()), str(WORKER)])
