"""Signing in and out over HTTP: the cookie of a session, the form of the token, and who is let to which page."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Final
from urllib.parse import parse_qsl

import trio
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from broker.admin.web.access import Access, BrowserSession, is_proof

FIELDS_MAX: Final = 256
WRONG_TOKEN_PAUSE_S: Final = 0.5
"""After a wrong token, for all who try meanwhile: two guesses a second."""

PROOF_FIELD: Final = "proof"


class SignIns:
    """The sessions of an `Access`, as requests carry them."""

    def __init__(self, access: Access) -> None:
        self.access = access
        self._turn = trio.Lock()

    @property
    def is_busy(self) -> bool:
        """True while a token is looked at."""
        return self._turn.locked()

    def session(self, request: Request) -> BrowserSession | None:
        """Return the session that a request belongs to; None: none."""
        return self.access.session(request.cookies.get(_cookie_name(request)), trio.current_time())

    async def sign_in(self, request: Request) -> Response | None:
        """Begin a session with the token of a form; None: it was not the token."""
        token = (await read_form(request)).get("token", "")
        async with self._turn:
            session = self.access.sign_in(token, trio.current_time())
            if session is None:
                await trio.sleep(WRONG_TOKEN_PAUSE_S)
                return None
        answer = RedirectResponse("/", HTTPStatus.SEE_OTHER)
        answer.set_cookie(
            _cookie_name(request),
            session.key,
            httponly=True,
            samesite="strict",
            secure=request.url.scheme == "https",
        )
        return answer

    async def sign_out(self, request: Request) -> Response:
        """End the session of a request.

        Raises:
            HTTPException: the form was not made for it.
        """
        session, _ = await self.proven_form(request)
        self.access.sign_out(session.key)
        answer = RedirectResponse("/", HTTPStatus.SEE_OTHER)
        answer.delete_cookie(_cookie_name(request), httponly=True, samesite="strict")
        return answer

    async def proven_form(self, request: Request) -> tuple[BrowserSession, Mapping[str, str]]:
        """Return the session of a request and its form, which was made for this session.

        Raises:
            HTTPException: there is no session, or the form was not made for it.
        """
        session = self.session(request)
        if session is None:
            raise HTTPException(HTTPStatus.FORBIDDEN, "That needs the token: sign in first.")
        form = await read_form(request)
        if not is_proof(session, form.get(PROOF_FIELD, "")):
            raise HTTPException(
                HTTPStatus.FORBIDDEN, "This form was not made for this session: load its page anew."
            )
        return session, form


async def read_form(request: Request) -> Mapping[str, str]:
    """Return the fields of a form.

    Raises:
        HTTPException: it is no form, or has too many fields.
    """
    try:
        text = (await request.body()).decode()
        return dict(parse_qsl(text, keep_blank_values=True, max_num_fields=FIELDS_MAX))
    except ValueError as error:
        raise HTTPException(HTTPStatus.BAD_REQUEST, "That is no form of this console.") from error


def _cookie_name(request: Request) -> str:
    """Return the name of the cookie: consoles on other ports of a machine share its cookies."""
    _, port = request.scope.get("server") or ("", 0)
    return f"dledger-console-{port}"
