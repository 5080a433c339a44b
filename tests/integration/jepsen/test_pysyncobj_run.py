"""Another system under the same harness: it is started, driven, killed and judged like ours.

What the verdict is, is PySyncObj's business (docs/checkers.md); that there is one is ours.
"""

from pathlib import Path

import pytest

from jepsen.catalogue import UnknownNameError
from jepsen.measure import in_rounds
from jepsen.run import RunSettings, execute
from tests.integration.jepsen.breaking import TIME_LIMIT_S


@pytest.mark.integration
@pytest.mark.slow
def test_pysyncobj_is_judged(tmp_path: Path) -> None:
    settings = RunSettings("log-append", "kill:leader", TIME_LIMIT_S, seed=7, system="pysyncobj")
    result = execute(settings, tmp_path, break_it=in_rounds(2))
    assert result.problems == ()
    assert result.faults["kill:leader"] == 2
    linearizable = result.checks[0]
    assert linearizable.name == "linearizable"
    assert linearizable.valid is not None, linearizable
    assert linearizable.counts["operations"] != 0


def test_links_between_its_members_are_refused(tmp_path: Path) -> None:
    settings = RunSettings("log-set", "none", 1.0, system="pysyncobj", network="proxies")
    with pytest.raises(UnknownNameError, match="no links between them"):
        execute(settings, tmp_path / "run")
    assert not (tmp_path / "run").exists()
