"""A web service that takes orders and counts what is ordered: FastAPI, a producer and a consumer in one process.

NAMESRV=127.0.0.1:9876 uvicorn --app-dir examples order_service:app     (pip install fastapi uvicorn)
"""

import json
import os
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, HTTPException, Request
from pydantic import BaseModel

from dledger_mq import ClientError, Producer, PushConsumer, ReceivedMessage, SendOutcomeUnknownError


class Order(BaseModel):
    """The order of a customer."""

    customer: str
    item: str


def create_app(namesrv: str) -> FastAPI:
    """Make the service; its clients live as long as it does."""
    ordered: Counter[str] = Counter()

    async def count(message: ReceivedMessage) -> None:
        ordered[message.value["item"]] += 1

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with (
            Producer(
                namesrv, "shop", serializer=lambda value: json.dumps(value).encode()
            ) as producer,
            PushConsumer(
                namesrv,
                "counting",
                count,
                subscriptions={"Orders": "*"},
                start_from="first",
                deserializer=json.loads,
            ),
        ):
            app.state.producer = producer
            yield

    app = FastAPI(lifespan=lifespan)

    @app.post("/orders", status_code=202)
    async def take(order: Order, request: Request) -> dict[str, str]:
        producer: Producer = request.app.state.producer
        message = producer.message("Orders", order.model_dump(), keys=order.customer)
        try:
            result = await producer.send(message, key=order.customer, timeout_s=5)
        except SendOutcomeUnknownError as error:
            raise HTTPException(503, f"order {error.unique_key} may have been taken") from error
        except ClientError as error:
            raise HTTPException(503, "the order was not taken") from error
        return {"id": result.unique_key}

    @app.get("/ordered")
    async def show() -> dict[str, int]:
        return dict(ordered)

    return app


app = create_app(os.environ.get("NAMESRV", "127.0.0.1:9876"))
