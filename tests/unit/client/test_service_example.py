"""examples/order_service.py: a web service takes orders, sends them, and counts what comes back; on both loops."""

from __future__ import annotations

import runpy
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from dledger_mq.remoting.codes import ResponseCode
from dledger_mq.testing import FakeGroup, open_fake_group

pytest.importorskip("fastapi", reason="FastAPI is not installed (extra `dev`)")
httpx = pytest.importorskip("httpx", reason="httpx is not installed (extra `dev`)")

pytestmark = pytest.mark.anyio

EXAMPLE = Path(__file__).resolve().parents[3] / "examples/order_service.py"


@pytest.fixture
async def group() -> AsyncIterator[FakeGroup]:
    async with open_fake_group() as fake:
        yield fake


async def test_orders_are_taken_sent_and_counted(group: FakeGroup) -> None:
    app = runpy.run_path(str(EXAMPLE))["create_app"](group.namesrv)
    transport = httpx.ASGITransport(app)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://shop") as web,
    ):
        order = {"customer": "seven", "item": "shoes"}
        taken = await web.post("/orders", json=order)
        assert taken.status_code == 202
        assert (await web.post("/orders", json={"customer": "seven"})).status_code == 422
        with anyio.fail_after(30):
            while (await web.get("/ordered")).json() != {"shoes": 1}:
                await anyio.lowlevel.checkpoint()

        group.script.append(ResponseCode.MESSAGE_ILLEGAL)
        refused = await web.post("/orders", json=order)
        assert (refused.status_code, refused.json()["detail"]) == (503, "the order was not taken")
    (stored,) = group.messages("Orders")
    assert stored.body == b'{"customer": "seven", "item": "shoes"}'
