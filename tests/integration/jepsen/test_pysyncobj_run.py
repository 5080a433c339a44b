"""Another system under the same harness: it is started, driven, killed and judged like ours.

What the verdict is, is PySyncObj's business (docs/checkers.md); that there is one is ours.
"""

from pathlib import Path

import pytest

from jepsen.catalogue import UnknownNameError
from jepsen.run import RunSettings, execute


@pytest.mark.integration
@pytest.mark.slow
def test_pysyncobj_is_judged(tmp_path: Path) -> None:
    settings = RunSettings("log-append", "kill:leader", 6.0, seed=7, system="pysyncobj")
    result = execute(settings, tmp_path)
    assert result.valid is not None, (
        result.problems,
        [check.why_unknown for check in result.checks],
    )
    assert result.faults["kill:leader"] >= 1
    linearizable = result.checks[0]
    assert linearizable.name == "linearizable"
    assert linearizable.counts["operations"] != 0


def test_links_between_its_members_are_refused(tmp_path: Path) -> None:
    settings = RunSettings("log-set", "none", 1.0, system="pysyncobj", network="proxies")
    with pytest.raises(UnknownNameError, match="no links between them"):
        execute(settings, tmp_path / "run")
    assert not (tmp_path / "run").exists()
