"""A Prometheus of our own for a run: what it looks at, and what it answers. It must not know what a figure means."""

from __future__ import annotations

import json
import math
import shutil
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final

from jepsen.ports import free_ports
from jepsen.processes import Process, wait_listening

START_S: Final = 60.0
ANSWER_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Series:
    """The figures of one set of labels.

    Attributes:
        points: seconds since 1970, and the figure; nothing where there was none.
    """

    labels: Mapping[str, str]
    points: Sequence[tuple[float, float]]


class QueryError(RuntimeError):
    """Prometheus did not take an expression; the text says which and why."""


def find_prometheus(named: str | None) -> str:
    """Return the program.

    Raises:
        FileNotFoundError: it is not installed, or not where it is said to be.
    """
    found = shutil.which(named or "prometheus")
    if found is None:
        raise FileNotFoundError(f"{named or 'prometheus'} is not installed (Debian: prometheus)")
    return found


class Prometheus(AbstractContextManager["Prometheus"]):
    """Looks at some addresses, in steps, while it is open."""

    def __init__(
        self, program: str, folder: Path, jobs: Mapping[str, Sequence[str]], *, step_s: int
    ) -> None:
        """Set up one; it starts when it is entered.

        Args:
            program: the path of Prometheus.
            folder: for its settings, figures and log.
            jobs: the addresses to look at, by the name of their job.
            step_s: between two looks.
        """
        folder.mkdir(parents=True)
        settings = folder / "prometheus.json"  # JSON is YAML
        scrapes = [
            {"job_name": job, "static_configs": [{"targets": list(addresses)}]}
            for job, addresses in jobs.items()
        ]
        every = {"scrape_interval": f"{step_s}s", "scrape_timeout": f"{step_s}s"}
        settings.write_text(json.dumps({"global": every, "scrape_configs": scrapes}))
        (port,) = free_ports(1)
        command = [
            program,
            f"--config.file={settings}",
            f"--storage.tsdb.path={folder / 'figures'}",
            f"--web.listen-address=127.0.0.1:{port}",
        ]
        self._process = Process("prometheus", command, log=folder / "prometheus.log", port=port)
        self._step_s = step_s

    def __enter__(self) -> Prometheus:
        self._process.start()
        try:
            wait_listening([self._process], START_S)
        except BaseException:  # also an interrupt: nobody else would end the process
            self._process.kill()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._process.stop()

    def ask(self, expression: str, begin_s: float, end_s: float) -> list[Series]:
        """Return what an expression was from one time to another, in seconds since 1970.

        Raises:
            QueryError: it is no expression.
            OSError: Prometheus does not answer.
        """
        fields = {"query": expression, "start": begin_s, "end": end_s, "step": self._step_s}
        url = f"http://{self._process.address}/api/v1/query_range?{urllib.parse.urlencode(fields)}"
        try:
            with urllib.request.urlopen(url, timeout=ANSWER_S) as answer:
                found = json.load(answer)["data"]["result"]
        except urllib.error.HTTPError as error:
            raise QueryError(f"{expression}: {error.read().decode(errors='replace')}") from None
        return [
            Series(each["metric"], [(at, float(text)) for at, text in each["values"]])
            for each in found
        ]


def last_figures(series: Sequence[Series]) -> list[tuple[Mapping[str, str], float]]:
    """Return the labels and the last figure of the series that go on to the end."""
    end_s = max((each.points[-1][0] for each in series if each.points), default=-math.inf)
    return [
        (each.labels, each.points[-1][1])
        for each in series
        if each.points and each.points[-1][0] == end_s
    ]
