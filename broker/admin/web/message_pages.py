"""The handlers of the pages of messages: what is searched, and the answer when it cannot be."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial
from http import HTTPStatus
from typing import Final, TypeVar

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from broker.admin.message_search import (
    FoundMessage,
    MessageSearch,
    NoSuchQueueError,
    SearchError,
    SearchForbiddenError,
    SearchFormError,
    open_search,
)
from broker.admin.web import message_views
from broker.admin.web.console import Console
from broker.admin.web.grid import Cell
from broker.admin.web.message_views import MessageView, QueueView, row_of, time_in, whole_number
from broker.admin.web.rendering import address_of
from dledger_mq.client.errors import ClientError
from dledger_mq.client.queues import MessageQueue
from dledger_mq.message.names import topic_problem
from dledger_mq.message.properties import UNIQ_KEY

_T = TypeVar("_T")

Rows = tuple[tuple[Cell, ...], ...]

QUERY_NAMES: Final = ("by", "topic", "key", "id", "time")

_READ_QUEUES: Final = "SUB of the topic, and SUB of the group TOOLS_CONSUMER"
_READ_PLACES: Final = "SUB of all topics"
_RIGHTS: Final = {"key": "SUB of the topic", "time": _READ_QUEUES}
_STATUSES: Final[dict[type[SearchError], HTTPStatus]] = {
    SearchFormError: HTTPStatus.BAD_REQUEST,
    NoSuchQueueError: HTTPStatus.NOT_FOUND,
    SearchForbiddenError: HTTPStatus.FORBIDDEN,
}


def failure(error: SearchError, rights: str) -> tuple[str, HTTPStatus]:
    """Return what a page says of a search that failed, and its status; `rights`: those that it takes (docs/acl.md)."""
    text = str(error)
    if isinstance(error, SearchForbiddenError):
        text += f". Where access is controlled, this console's account needs for it: {rights}"
    return text, _STATUSES.get(type(error), HTTPStatus.SERVICE_UNAVAILABLE)


async def messages(console: Console, request: Request) -> Response:
    """Show the forms of a search, and what it has found."""
    query = {name: request.query_params.get(name, "").strip() for name in QUERY_NAMES}
    found, problem, status = None, "", HTTPStatus.OK
    if query["by"]:
        try:
            rows = await console.questions.ask(
                ("messages", *query.values()), partial(_search, console, query)
            )
            found = message_views.found_grid(rows, dict(request.query_params))
        except SearchError as error:
            problem, status = failure(error, _RIGHTS.get(query["by"], _READ_PLACES))
    return console.page(
        request, "messages.html", status=status, query=query, found=found, problem=problem
    )


async def queue(console: Console, request: Request) -> Response:
    """Show some messages of a queue."""
    query = request.query_params
    topic, broker = query.get("topic", ""), query.get("broker", "")
    queue_id = whole_number(query.get("queue", ""))
    if queue_id is None or not broker or topic_problem(topic):
        raise HTTPException(HTTPStatus.NOT_FOUND)
    offset = whole_number(query.get("offset", ""))
    wanted = MessageQueue(topic, broker, queue_id)

    async def look(search: MessageSearch) -> QueueView:
        page = await search.from_queue(wanted, offset)
        return message_views.queue_view(page, query, offset)

    view, problem, status = None, "", HTTPStatus.OK
    try:
        view = await console.questions.ask(
            ("queue", wanted, offset), partial(_with_search, console, look)
        )
    except SearchError as error:
        problem, status = failure(error, _READ_QUEUES)
    return console.page(
        request, "queue.html", status=status, queue=wanted, view=view, problem=problem
    )


async def message(console: Console, request: Request) -> Response:
    """Show one message with its body."""
    query = request.query_params
    broker, offset = query.get("broker", ""), whole_number(query.get("offset", ""))
    if not broker or offset is None:
        raise HTTPException(HTTPStatus.NOT_FOUND)

    async def look(search: MessageSearch) -> MessageView | None:
        found = await search.at(broker, offset)
        return None if found is None else await _with_trace(search, found)

    try:
        view = await console.questions.ask(
            ("message", broker, offset), partial(_with_search, console, look)
        )
    except SearchError as error:
        problem, status = failure(error, _READ_PLACES)
        title = f"The message could not be looked up: {problem}"
        return console.page(request, "error.html", status=status, title=title)
    if view is None:
        title = "There is no message at this place, or no more."
        return console.page(request, "error.html", status=HTTPStatus.NOT_FOUND, title=title)
    name, body = view.body.form(query.get("as", ""))
    links = {
        form: address_of("/message", broker=broker, offset=offset, **{"as": form})
        for form in view.body.forms()
    }
    trace = message_views.in_order(view.trace, query)
    return console.page(
        request, "message.html", view=view, form=name, body=body, links=links, trace=trace
    )


async def _with_trace(search: MessageSearch, found: FoundMessage) -> MessageView:
    """Return the page of a message with its trace; that the trace cannot be read does not hide the message."""
    view = message_views.message_view(found)
    key = found.record.find(UNIQ_KEY)
    if key is None:
        return view
    try:
        trace = await search.trace(key.decode(errors="replace"))
    except ClientError as error:
        return replace(view, trace_problem=str(error))
    if trace is None or trace.is_empty:
        return view
    return replace(view, trace=message_views.trace_grid(trace), is_trace_cut=trace.is_cut)


async def _search(console: Console, query: Mapping[str, str]) -> Rows:
    """Carry out the search of a form.

    Raises:
        SearchFormError: the form is not filled in.
        SearchError: the search failed.
    """
    begin_ms = time_in(query["time"])
    if query["by"] != "id" and (problem := topic_problem(query["topic"])):
        raise SearchFormError(problem)
    if query["by"] == "key" and not query["key"]:
        raise SearchFormError("no key is given")
    if query["by"] == "time" and begin_ms is None:
        raise SearchFormError("no time is given, as 2026-01-31T12:00:00 (UTC) or in ms since 1970")

    async def look(search: MessageSearch) -> Rows:
        match query["by"]:
            case "key":
                found = await search.by_key(query["topic"], query["key"])
            case "time":
                found = await search.by_time(query["topic"], begin_ms or 0)
            case _:
                found = await search.by_id(query["id"])
        return tuple(map(row_of, found))

    return await _with_search(console, look)


async def _with_search(console: Console, look: Callable[[MessageSearch], Awaitable[_T]]) -> _T:
    """Open a search, and return what is shown of what it finds.

    Raises:
        SearchError: it failed.
    """
    async with open_search(console.name_servers) as search:
        return await look(search)
