"""What is given away: an sdist that is the whole clone, and a wheel that works where nothing else of ours is."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import pytest

from dledger.version import __version__
from jepsen.ports import free_ports
from tests.stages import needs_compiler
from tests.unpacking import unpack

ROOT = Path(__file__).resolve().parents[3]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
COMMANDS = list(PYPROJECT["project"]["scripts"])
TIMEOUT_S = 480.0

pytestmark = [
    pytest.mark.slow,
    pytest.mark.integration,
    pytest.mark.skipif(not (ROOT / ".git").exists(), reason="needs a git clone to compare with"),
    pytest.mark.skipif(find_spec("build") is None, reason="the package `build` is not installed"),
    pytest.mark.skipif(
        int(version("setuptools").partition(".")[0]) < 77, reason="needs setuptools 77 or later"
    ),
]

SEND_AND_READ_BACK = """
import sys, trio
import dledger
from dledger_mq import Message, Producer, PullConsumer

assert dledger.__file__.startswith(sys.prefix), dledger.__file__

async def main(namesrv):
    async with Producer(namesrv=namesrv, group="shop", timeout_s=60) as producer:
        sent = await producer.send(Message("Orders", b"one pair of shoes"))
    async with PullConsumer(namesrv=namesrv, group="audit", timeout_s=60) as consumer:
        pulled = await consumer.pull(sent.queue, sent.queue_offset)
        print([message.body for message in pulled.messages])

trio.run(main, sys.argv[1])
"""


def run(*arguments: str | Path, cwd: Path, **variables: str) -> str:
    """Run a program as somebody would who has no clone, with more variables; its standard output."""
    done = subprocess.run(
        [str(argument) for argument in arguments],
        cwd=cwd,
        env={key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
        | variables,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, f"{arguments}: {done.stdout}\n{done.stderr}"
    return done.stdout


def tracked_files() -> list[str]:
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True
    )
    return [name for name in listed.stdout.split("\0") if name and (ROOT / name).exists()]


BUILD = (sys.executable, "-m", "build", "--no-isolation")
COMPILED = "dledger_mq/message/_compiled.abi3.so"
WHICH = "from dledger_mq.message import compiled; print(compiled.describe())"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the sdist, made from the files of the clone, and the wheel, made from the sdist."""
    clone, out = tmp_path_factory.mktemp("clone"), tmp_path_factory.mktemp("dist")
    for name in tracked_files():
        (clone / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, clone / name)
    run(*BUILD, "--outdir", out, clone, cwd=out)
    return out


@pytest.fixture(scope="module")
def installed(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` of a new environment: the wheel, and of this one only what the wheel depends on."""
    return install(built, tmp_path_factory.mktemp("environment"))


def install(built: Path, environment: Path) -> Path:
    """Install the wheel of a folder into a new environment; its `bin`."""
    run(sys.executable, "-m", "venv", "--without-pip", environment, cwd=environment)
    (wheel,) = built.glob("*.whl")
    python = environment / "bin" / "python"
    pip = (sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check")
    run(*pip, "install", "--quiet", "--no-deps", "--no-index", wheel, cwd=environment)
    # A folder in a .pth file gives its modules, not its own .pth files, and so not our editable installation.
    (site_packages,) = environment.glob("lib/python3*/site-packages")
    dependencies = [folder for folder in sys.path if folder.endswith("site-packages")]
    (site_packages / "dependencies.pth").write_text("\n".join(dependencies))
    return environment / "bin"


def test_the_sdist_has_every_file_of_the_clone(built: Path) -> None:
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        inside = {name.partition("/")[2] for name in archive.getnames()}
    assert [name for name in tracked_files() if name not in inside] == []


def test_the_wheel_has_the_packages_and_nothing_beside_them(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        metadata = archive.read(f"dledger-{__version__}.dist-info/METADATA").decode()
    packages = {name.partition("/")[0] for name in names if name.endswith("/py.typed")}
    assert {name.partition("/")[0] for name in names} == packages | {
        "pyspark_rocketmq.py",
        f"dledger-{__version__}.dist-info",
    }
    ours = [name for name in tracked_files() if name.partition("/")[0] in packages]
    assert [name for name in ours if name not in names] == []
    assert "License-Expression: Apache-2.0\n" in metadata
    assert "Classifier: Typing :: Typed\n" in metadata


def inside(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist()


@needs_compiler
def test_the_wheel_has_compiled_code_for_every_python_from_3_11_on(
    built: Path, installed: Path, tmp_path: Path
) -> None:
    (wheel,) = built.glob("*.whl")
    assert COMPILED in inside(wheel)
    assert f"-{__version__}-cp311-abi3-linux_" in wheel.name
    assert run(installed / "python", "-c", WHICH, cwd=tmp_path) == "compiled code\n"


def test_a_wheel_that_was_made_without_a_compiler_works_without_compiled_code(
    built: Path, tmp_path: Path
) -> None:
    (sdist,) = built.glob("*.tar.gz")
    unpack(sdist, tmp_path)
    (unpacked,) = tmp_path.iterdir()
    out, environment = tmp_path / "out", tmp_path / "environment"
    environment.mkdir()
    run(*BUILD, "--wheel", "--outdir", out, unpacked, cwd=tmp_path, CC="/bin/false")
    (wheel,) = out.glob("*.whl")
    assert COMPILED not in inside(wheel)
    python = install(out, environment) / "python"
    assert run(python, "-c", WHICH, cwd=tmp_path) == "Python (not compiled)\n"


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_runs_outside_of_the_clone(
    installed: Path, tmp_path: Path, command: str
) -> None:
    assert run(installed / command, "--help", cwd=tmp_path).startswith(f"usage: {command}")


def test_the_version_is_known_outside_of_the_clone(installed: Path, tmp_path: Path) -> None:
    """Of one command: that all others tell the same, `tests/architecture/test_package.py` shows."""
    command = COMMANDS[0]
    assert run(installed / command, "--version", cwd=tmp_path) == f"{command} {__version__}\n"


@contextmanager
def running(*arguments: str | Path, cwd: Path, ready: str) -> Iterator[None]:
    """A server, from the line that says that it is ready until it has stopped in order."""
    server = subprocess.Popen(
        [str(argument) for argument in arguments],
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert server.stdout is not None
    said = []
    try:
        for line in server.stdout:
            said.append(line)
            if ready in line:
                break
        else:
            raise AssertionError(f"{arguments} ended: {said}")
        yield
    finally:
        server.terminate()
        server.communicate(timeout=TIMEOUT_S)
    assert server.returncode == 0


def test_a_single_broker_takes_a_message_and_gives_it_back(installed: Path, tmp_path: Path) -> None:
    name_server_port, broker_port, member_port = free_ports(3)
    namesrv = f"127.0.0.1:{name_server_port}"
    with (
        running(
            *(installed / "dledger-namesrv", "--listen", namesrv),
            cwd=tmp_path,
            ready="name server ready",
        ),
        running(
            *(installed / "dledger-broker", "--group", "alone", "--id", "n0"),
            *("--peers", f"n0-127.0.0.1:{member_port}", "--listen", f"127.0.0.1:{broker_port}"),
            *("--namesrv", namesrv, "--store", tmp_path / "store"),
            cwd=tmp_path,
            ready="is ready",
        ),
    ):
        out = run(installed / "python", "-c", SEND_AND_READ_BACK, namesrv, cwd=tmp_path)
    assert out == "[b'one pair of shoes']\n"
