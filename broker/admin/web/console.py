"""All that the pages of a console are made of, and what stands on each of them."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import trio
from starlette.requests import Request
from starlette.responses import Response

from broker.admin.web import cluster_view, words
from broker.admin.web.plans import Plans
from broker.admin.web.rendering import Templates
from broker.admin.web.sampler import Sampler
from broker.admin.web.sessions import SignIns
from broker.admin.web.shared_questions import SharedQuestions


@dataclass
class Console:
    """The parts of a console.

    Attributes:
        sampler: what was seen of the cluster.
        sign_ins: who may look, and change.
        name_servers: for questions that a page asks by itself, joined with `;`.
        templates: of the pages.
        plans: changes that were shown, and may be confirmed.
        questions: those that are under way, and their answers for a moment.
        turn: of the change that is carried out: each looks first whether all stands as it was shown.
        wall_ms: returns the time in ms since 1970.
    """

    sampler: Sampler
    sign_ins: SignIns
    name_servers: str
    templates: Templates = field(default_factory=Templates)
    plans: Plans = field(default_factory=Plans)
    questions: SharedQuestions = field(default_factory=SharedQuestions)
    turn: trio.Lock = field(default_factory=trio.Lock)
    wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000

    def page(
        self,
        request: Request,
        template: str,
        *,
        status: int = 200,
        refresh_s: float = 0.0,
        **values: object,
    ) -> Response:
        """Return a page with what stands on each.

        Args:
            request: which it answers.
            template: of the page.
            status: of the answer.
            refresh_s: after how long a script brings it up to date; 0: never.
            **values: what it shows.
        """
        now_ms = self.wall_ms()
        return self.templates.page(
            template,
            status=status,
            refresh_s=refresh_s,
            path=request.url.path,
            banner=cluster_view.banner(self.sampler, now_ms) if self.may_look(request) else None,
            access=self.sign_ins.access,
            session=self.sign_ins.session(request),
            now=words.time_of(now_ms),
            **values,
        )

    def may_look(self, request: Request) -> bool:
        """Return whether who sends a request may see anything."""
        return self.sign_ins.access.is_open or self.sign_ins.session(request) is not None


Handler = Callable[[Console, Request], Awaitable[Response]]
"""The answer to requests for one address."""
