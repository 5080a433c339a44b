"""The application of the console: which address is answered with which page.

It must not know how a page looks (templates) nor what stands in it (the modules that end with `view` or `views`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from http import HTTPStatus
from typing import Final

import trio
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from broker.admin.answers import ConsumerConnections, WireSubscription
from broker.admin.ask import make_links
from broker.admin.broker_tables import BrokerTables, NoAnswerError
from broker.admin.survey import ANSWER_S
from broker.admin.web import (
    change_pages,
    chart_view,
    cluster_view,
    group_views,
    message_pages,
    topic_views,
    words,
)
from broker.admin.web.console import Console, Handler
from broker.admin.web.grid import Grid
from broker.admin.web.guard import Guard
from broker.admin.web.sampler import LOOK_S, TABLES_S, Sampler

log = logging.getLogger(__name__)

_NO_SUCH_PAGE: Final = "There is no such page."


def make_app(console: Console, host_names: Collection[str] = ()) -> ASGIApp:
    """Return the application, with the guard before it."""
    handlers: dict[str, Handler] = {
        "/": _cluster,
        "/topics": _topics,
        "/topic": _topic,
        "/groups": _groups,
        "/group": _group,
        "/messages": message_pages.messages,
        "/queue": message_pages.queue,
        "/message": message_pages.message,
        "/charts": _charts,
        "/reset": change_pages.reset,
        "/dead-letters": change_pages.dead_letters,
        "/resend": change_pages.resend_letters,
    }
    routes: list[BaseRoute] = [
        Route(path, partial(_let_in, console, handler)) for path, handler in handlers.items()
    ]
    routes += [
        Route("/sign-in", partial(_sign_in, console), methods=["GET", "POST"]),
        Route("/confirm", partial(change_pages.confirm, console), methods=["POST"]),
        Route("/sign-out", partial(_sign_out, console), methods=["POST"]),
    ]
    routes.append(Mount("/static", StaticFiles(packages=[("broker.admin.web", "static")])))
    app = Starlette(
        routes=routes,
        exception_handlers={
            HTTPException: partial(_on_http_error, console),
            Exception: partial(_on_defect, console),
        },
    )
    return Guard(app, host_names)


async def _let_in(console: Console, handler: Handler, request: Request) -> Response:
    """Answer those who may look; the others are asked for the token."""
    if not console.may_look(request):
        return RedirectResponse("/sign-in", HTTPStatus.SEE_OTHER)
    return await handler(console, request)


async def _sign_in(console: Console, request: Request) -> Response:
    """Show the form of the token, and take it."""
    if not console.sign_ins.access.has_token:
        text = "Nobody can sign in: this console was started without a token."
        return console.page(request, "error.html", status=HTTPStatus.NOT_FOUND, title=text)
    if request.method == "POST":
        answer = await console.sign_ins.sign_in(request)
        if answer is not None:
            return answer
        return console.page(request, "sign_in.html", status=HTTPStatus.FORBIDDEN, is_wrong=True)
    return console.page(request, "sign_in.html", is_wrong=False)


async def _sign_out(console: Console, request: Request) -> Response:
    return await console.sign_ins.sign_out(request)


async def _cluster(console: Console, request: Request) -> Response:
    view = cluster_view.cluster_view(console.sampler, request.query_params, console.wall_ms())
    return console.page(request, "cluster.html", refresh_s=LOOK_S, view=view)


async def _topics(console: Console, request: Request) -> Response:
    return _list(console, request, "topics.html", topic_views.topics_view)


async def _topic(console: Console, request: Request) -> Response:
    view = topic_views.topic_view(console.sampler, _name(request), request.query_params)
    return _one(console, request, "topic.html", view, problems=_problems(console.sampler))


async def _groups(console: Console, request: Request) -> Response:
    return _list(console, request, "groups.html", group_views.groups_view)


async def _group(console: Console, request: Request) -> Response:
    """Show one group; who is connected is asked for, and where nobody answers the rest is shown without."""
    name = _name(request)
    problems = dict(_problems(console.sampler))
    members = None
    try:
        members = await members_of(console, name)
    except NoAnswerError as error:
        problems["members"] = str(error)
    view = group_views.group_view(console.sampler, name, members, request.query_params)
    return _one(console, request, "group.html", view, problems=problems)


def _list(
    console: Console,
    request: Request,
    template: str,
    view: Callable[[Sampler, Mapping[str, str]], Grid],
) -> Response:
    """Show all topics, or all groups."""
    query = request.query_params
    return console.page(
        request,
        template,
        refresh_s=TABLES_S,
        grid=view(console.sampler, query),
        query=query,
        problems=_problems(console.sampler),
    )


def _one(
    console: Console,
    request: Request,
    template: str,
    view: topic_views.TopicView | group_views.GroupView,
    *,
    problems: Mapping[str, str],
) -> Response:
    """Show one topic or group; one that nobody knows has the same page, and a status that says so."""
    return console.page(
        request,
        template,
        status=HTTPStatus.OK if view.is_known else HTTPStatus.NOT_FOUND,
        refresh_s=TABLES_S,
        view=view,
        problems=problems,
    )


async def members_of(console: Console, group: str) -> ConsumerConnections:
    """Return who consumes in a group, by the broker groups that answer.

    Raises:
        NoAnswerError: none answers.
    """
    return await console.questions.ask(("members", group), partial(_ask_members, console, group))


async def _ask_members(console: Console, group: str) -> ConsumerConnections:
    """Ask the leader of each broker group, and join the answers.

    Raises:
        NoAnswerError: none answers.
    """
    at = [each.leader.address for each in console.sampler.health.groups if each.leader is not None]
    answers: list[ConsumerConnections] = []
    failures: list[str] = []

    async def ask(address: str) -> None:
        try:
            answers.append(await BrokerTables(links, address, timeout_s=ANSWER_S).members(group))
        except NoAnswerError as error:
            failures.append(str(error))

    async with trio.open_nursery() as nursery:
        links = make_links(nursery)
        async with trio.open_nursery() as asking:
            for address in at:
                asking.start_soon(ask, address)
        nursery.cancel_scope.cancel()
    if not answers:
        raise NoAnswerError("; ".join(failures) or "no group has a leader that could be asked")
    return _joined(answers)


def _joined(answers: Sequence[ConsumerConnections]) -> ConsumerConnections:
    """Return the members that any broker group knows; each client registers with all of them."""
    members = {one.client_id: one for answer in answers for one in answer.connection_set}
    subscriptions: dict[str, WireSubscription] = {}
    for answer in answers:
        subscriptions |= answer.subscription_table
    model = next((answer.message_model for answer in answers if answer.message_model), None)
    return ConsumerConnections(
        tuple(members[client_id] for client_id in sorted(members)),
        message_model=model,
        subscription_table=subscriptions,
    )


async def _charts(console: Console, request: Request) -> Response:
    groups = [group.name for group in console.sampler.health.groups if group.name]
    sections = chart_view.chart_sections(console.sampler.history, groups)
    return console.page(request, "charts.html", refresh_s=TABLES_S, sections=sections)


def _name(request: Request) -> str:
    """Return the name that an address asks for.

    Raises:
        HTTPException: there is none.
    """
    name = request.query_params.get("name", "")
    if not name:
        raise HTTPException(HTTPStatus.NOT_FOUND)
    return name


def _problems(sampler: Sampler) -> Mapping[str, str]:
    """Return why the tables of a broker group are not of now, and since when."""
    return {
        name: f"{tables.problem}; shown is what was known "
        + (f"at {words.clock_of(tables.at_ms)} UTC" if tables.at_ms else "before: nothing")
        for name, tables in sampler.tables.items()
        if tables.problem
    }


async def _on_http_error(console: Console, request: Request, error: Exception) -> Response:
    """Answer what was asked for wrongly with a page that says so."""
    status = error.status_code if isinstance(error, HTTPException) else HTTPStatus.BAD_REQUEST
    text = _NO_SUCH_PAGE if status == HTTPStatus.NOT_FOUND else HTTPStatus(status).phrase
    if isinstance(error, HTTPException) and error.detail not in ("", HTTPStatus(status).phrase):
        text = error.detail
    return console.page(request, "error.html", status=status, title=text)


async def _on_defect(console: Console, request: Request, error: Exception) -> Response:
    """Answer with a page that says no more than that it failed; the log has the rest."""
    log.error("the page %s failed", request.url.path, exc_info=error)
    text = "This page failed. That is a fault of the console; its log says more."
    return console.page(request, "error.html", status=HTTPStatus.INTERNAL_SERVER_ERROR, title=text)
