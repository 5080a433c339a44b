"""The README's example, pasted right after its group was started: nobody listens yet, and no broker leads."""

from __future__ import annotations

import re
import threading
from pathlib import Path

import pytest

from jepsen.processes import Group
from tests.integration.client.test_real_group import PATIENCE_S

pytestmark = [pytest.mark.integration, pytest.mark.slow]

README = Path(__file__).parents[3] / "README.md"
EXAMPLE = re.compile(r"^## Send and receive$.*?^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_the_readmes_example_waits_for_its_group(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (example,) = EXAMPLE.findall(README.read_text())
    # On a busy machine a group starts for longer than a send waits by itself.
    patient = example.replace('group="orders")', f'group="orders", timeout_s={PATIENCE_S})')
    assert patient != example
    with Group(tmp_path) as group:
        starting = threading.Thread(target=group.start)
        starting.start()
        exec(patient.replace("127.0.0.1:9876", group.namesrv), {})
        starting.join()
    queue_id, queue_offset = capsys.readouterr().out.split()[-2:]
    assert (int(queue_id) in range(16), queue_offset) == (True, "0")
