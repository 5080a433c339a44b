"""Who may look and who may change: a token, sessions of browsers that have shown it, and a proof in each form.

Everything is compared in constant time. It must not know of requests; time comes in as an argument.
"""

from __future__ import annotations

import hmac
import secrets
from collections import OrderedDict
from dataclasses import dataclass
from hashlib import sha256
from typing import Final

TOKEN_LENGTH_MIN: Final = 16
SESSIONS_MAX: Final = 64
SESSION_S: Final = 12 * 3600.0
_TOKEN_BYTES: Final = 24


def make_token() -> str:
    """Return a new token."""
    return secrets.token_urlsafe(_TOKEN_BYTES)


@dataclass(frozen=True, slots=True)
class BrowserSession:
    """A browser that has shown the token.

    Attributes:
        key: its cookie has it.
        form_proof: each of its forms has it, so that no other page can send one in its name.
    """

    key: str
    form_proof: str
    until_s: float


class Access:
    """The sessions of one console.

    Args:
        token: None: nobody can sign in, and nothing can be changed.
        may_change: whether a session may change anything; else it only may look.
        is_open: whether those who have not signed in may look.
    """

    def __init__(
        self, token: str | None = None, *, may_change: bool = False, is_open: bool = True
    ) -> None:
        self.has_token = token is not None
        self.may_change = may_change and token is not None
        self.is_open = is_open
        self._digest = b"" if token is None else _digest(token)
        self._sessions: OrderedDict[str, BrowserSession] = OrderedDict()

    def sign_in(self, token: str, now_s: float) -> BrowserSession | None:
        """Begin a session; None: that is not the token."""
        is_right = hmac.compare_digest(_digest(token), self._digest)
        if not (self.has_token and is_right):
            return None
        session = BrowserSession(make_token(), make_token(), now_s + SESSION_S)
        self._sessions[session.key] = session
        while len(self._sessions) > SESSIONS_MAX:
            self._sessions.popitem(last=False)
        return session

    def sign_out(self, key: str) -> None:
        """End a session."""
        self._sessions.pop(key, None)

    def session(self, key: str | None, now_s: float) -> BrowserSession | None:
        """Return the session with a key; None: there is none, or it is over."""
        found = self._sessions.get(key) if key else None
        if found is not None and found.until_s <= now_s:
            self.sign_out(found.key)
            return None
        return found


def is_proof(session: BrowserSession, proof: str) -> bool:
    """Return whether a form was made for a session."""
    return hmac.compare_digest(_digest(proof), _digest(session.form_proof))


def _digest(text: str) -> bytes:
    return sha256(text.encode("utf-8", "replace")).digest()
