"""The pages of changes: a preview of what would be done, and the answer once it is confirmed.

Every change goes through `ChangePlan`: what is carried out is what was shown, or nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import partial
from http import HTTPStatus
from typing import Final

import trio
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from broker.admin.failures import NotThereError
from broker.admin.message_search import MessageSearch, SearchError, is_forbidden, open_search
from broker.admin.printing import shown
from broker.admin.resend_dlq import TO_ORIGIN, TO_RETRY, Choice, ResendOutcome, resend
from broker.admin.web import change_views, words
from broker.admin.web.access import BrowserSession
from broker.admin.web.console import Console
from broker.admin.web.message_pages import failure
from broker.admin.web.message_views import row_of, time_in, whole_number
from broker.admin.web.plans import ChangePlan, ChangeRefusedError, PlanOutcome
from broker.admin.web.rendering import address_of
from broker.admin.web.resets import (
    ResetPreview,
    ResetRefusedError,
    Target,
    preview_reset,
    reset_as_previewed,
)
from dledger_mq.client.errors import ClientError, NoRouteError
from dledger_mq.message.names import dlq_topic, group_problem, topic_problem

log = logging.getLogger(__name__)

LETTERS_MAX: Final = 100
"""Dead letters of one change."""

PREVIEW_S: Final = 30.0
_REFUSED: Final = HTTPStatus.CONFLICT


async def reset(console: Console, request: Request) -> Response:
    """Show what a reset of a group's offsets would change."""
    session = _changer(console, request)
    query = request.query_params
    group, topic = query.get("name", ""), query.get("topic", "")
    back = address_of("/group", name=group)
    to = _target(query)
    problem = group_problem(group) or topic_problem(topic)
    if problem is None and to is None:
        problem = "no time is given, as 2026-01-31T12:00:00 (UTC) or in ms since 1970"
    if problem is not None or to is None:
        return _refusal(console, request, problem or "", back)
    try:
        with trio.fail_after(PREVIEW_S):
            preview = await preview_reset(console.name_servers, group, topic, to)
    except (ClientError, NotThereError, trio.TooSlowError) as error:
        return _not_found_out(console, request, error, back)
    key = ""
    if preview.moves:
        goal = to if isinstance(to, str) else f"{words.time_of(to)} UTC"
        summary = f"reset the offsets of {group} in {topic} to {goal}"
        plan = ChangePlan(summary, back, partial(_reset, console.name_servers, preview))
        key = console.plans.add(plan, session, trio.current_time())
    grid = change_views.reset_grid(preview, query)
    return console.page(request, "reset.html", preview=preview, grid=grid, plan=key, back=back)


async def dead_letters(console: Console, request: Request) -> Response:
    """Show the newest dead letters of a group."""
    group = _group(request)

    async def look(search: MessageSearch) -> change_views.Rows:
        return tuple(map(row_of, await search.newest(dlq_topic(group))))

    rows: change_views.Rows = ()
    problem, status = "", HTTPStatus.OK
    try:
        rows = await console.questions.ask(
            ("dead letters", group), partial(_search, console.name_servers, look)
        )
    except SearchError as error:
        topic = dlq_topic(group)
        problem, status = failure(error, f"SUB of {topic}, and SUB of the group TOOLS_CONSUMER")
    return console.page(
        request,
        "dead_letters.html",
        status=status,
        group=group,
        grid=change_views.letters_grid(rows, request.query_params),
        problem=problem,
        limit_max=LETTERS_MAX,
    )


async def resend_letters(console: Console, request: Request) -> Response:
    """Show which dead letters would be sent again."""
    session = _changer(console, request)
    group, query = _group(request), request.query_params
    back = address_of("/dead-letters", name=group)
    to = TO_ORIGIN if query.get("to") == TO_ORIGIN else TO_RETRY
    limit = min(LETTERS_MAX, max(1, whole_number(query.get("limit", "")) or LETTERS_MAX))
    try:
        with trio.fail_after(PREVIEW_S):
            preview = await _would_resend(console.name_servers, group, to, limit)
    except (ClientError, trio.TooSlowError) as error:
        return _not_found_out(console, request, error, back)
    key = ""
    if preview.resent:
        summary = f"send {len(preview.resent)} dead letters of {group} again, to {to}"
        work = partial(_resend, console.name_servers, group, to, preview=preview)
        key = console.plans.add(ChangePlan(summary, back, work), session, trio.current_time())
    return console.page(
        request, "resend.html", group=group, preview=preview, to=to, plan=key, back=back
    )


async def confirm(console: Console, request: Request) -> Response:
    """Carry out a change that was shown."""
    session, form = await console.sign_ins.proven_form(request)
    if not console.sign_ins.access.may_change:
        raise HTTPException(HTTPStatus.FORBIDDEN, "This console was started without --changes.")
    back, status = "/", _REFUSED
    try:
        plan = console.plans.take(form.get("plan", ""), session, trio.current_time())
        back = plan.back
        log.info("%s", shown(plan.summary))
        async with console.turn:
            outcome = await plan.work()
    except ChangeRefusedError as error:
        outcome = PlanOutcome(f"Nothing was changed: {error}.", "bad")
    except ClientError as error:
        word = "was not" if error.definite else "may have been"
        outcome = PlanOutcome(f"It {word} carried out, or in part only: {error}", "bad")
        status = _status_of(error)
    log.info("%s", shown(outcome.text))
    status = status if outcome.mark == "bad" else HTTPStatus.OK
    return console.page(request, "changed.html", status=status, outcome=outcome, back=back)


def _changer(console: Console, request: Request) -> BrowserSession:
    """Return the session of somebody who may change things.

    Raises:
        HTTPException: nobody may, or who asks has not signed in.
    """
    access, session = console.sign_ins.access, console.sign_ins.session(request)
    if not access.may_change:
        raise HTTPException(HTTPStatus.FORBIDDEN, "This console was started without --changes.")
    if session is None:
        raise HTTPException(HTTPStatus.FORBIDDEN, "That needs the token: sign in first.")
    return session


def _group(request: Request) -> str:
    group = request.query_params.get("name", "")
    if group_problem(group):
        raise HTTPException(HTTPStatus.NOT_FOUND)
    return group


def _target(query: Mapping[str, str]) -> Target | None:
    match query.get("to"):
        case "first":
            return "first"
        case "last":
            return "last"
        case _:
            return time_in(query.get("time", ""))


def _not_found_out(console: Console, request: Request, error: Exception, back: str) -> Response:
    """Answer where a preview could not be made."""
    why = str(error)
    if isinstance(error, trio.TooSlowError):
        why = f"it took longer than {PREVIEW_S:g} s"
    text = f"it could not be found out: {why}"
    return _refusal(console, request, text, back, status=_status_of(error))


def _status_of(error: Exception) -> HTTPStatus:
    is_refused = isinstance(error, ClientError) and is_forbidden(error)
    return HTTPStatus.FORBIDDEN if is_refused else _REFUSED


def _refusal(
    console: Console, request: Request, problem: str, back: str, *, status: HTTPStatus = _REFUSED
) -> Response:
    outcome = PlanOutcome(f"Nothing would be changed: {problem}", "bad")
    return console.page(request, "changed.html", status=status, outcome=outcome, back=back)


async def _search(namesrv: str, look: change_views.Look) -> change_views.Rows:
    """Open a search, and return the rows of what it finds; a group without dead letters has no topic for them.

    Raises:
        SearchError: it failed.
    """
    async with open_search(namesrv) as search:
        try:
            return await look(search)
        except NoRouteError:
            return ()


async def _reset(namesrv: str, preview: ResetPreview) -> PlanOutcome:
    """Carry out a reset as it was shown.

    Raises:
        ChangeRefusedError: something has changed since; nothing was done.
        ClientError: it may be done in part.
    """
    try:
        outcomes = await reset_as_previewed(namesrv, preview)
    except (ResetRefusedError, NotThereError) as error:
        raise ChangeRefusedError(str(error)) from error
    where = f"{preview.group} in {preview.topic}"
    problems = [f"{each.broker}: {each.state}: {each.problem}" for each in outcomes if each.problem]
    if problems:
        return PlanOutcome(f"Not all offsets of {where} are reset.", "bad", problems)
    lines = [f"{each.position.queue}: {each.to}" for each in preview.moves]
    return PlanOutcome(f"The offsets of {where} are reset.", "good", lines)


async def _would_resend(namesrv: str, group: str, to: str, limit: int) -> ResendOutcome:
    return await resend(namesrv, group, Choice(), to=to, limit=limit, is_dry=True)


async def _resend(namesrv: str, group: str, to: str, *, preview: ResendOutcome) -> PlanOutcome:
    """Send dead letters again, if they still are those that were shown.

    Raises:
        ChangeRefusedError: they are not; nothing was sent.
        ClientError: some may be sent.
    """
    limit = len(preview.resent)
    if (await _would_resend(namesrv, group, to, limit)).resent != preview.resent:
        raise ChangeRefusedError("other dead letters would be sent by now: look at them again")
    done = await resend(namesrv, group, Choice(), to=to, limit=limit)
    text = f"{len(done.resent)} dead letters of {group} were sent again."
    lines = [f"{key}: not sent: {reason}" for key, reason in done.failed.items()]
    return PlanOutcome(text, "warn" if lines else "good", lines)
