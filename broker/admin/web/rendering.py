"""Pages from templates: everything that is put into one is escaped, and shown so that it stays in its place."""

from __future__ import annotations

from typing import Final
from urllib.parse import urlencode

import jinja2
from starlette.responses import HTMLResponse

from broker.admin.web import words

_TEMPLATES: Final = "templates"


class Templates:
    """The templates of the console."""

    def __init__(self) -> None:
        self._environment = jinja2.Environment(
            loader=jinja2.PackageLoader("broker.admin.web", _TEMPLATES),
            autoescape=True,
            undefined=jinja2.StrictUndefined,
            finalize=_finalize,
            trim_blocks=True,
            lstrip_blocks=True,
        )

    def page(self, template: str, *, status: int = 200, **values: object) -> HTMLResponse:
        """Return a page as an answer; half a character of somebody's name is no reason to fail."""
        text = self._environment.get_template(template).render(values)
        return HTMLResponse(text.encode("utf-8", "replace"), status_code=status)


def address_of(path: str, **query: str | int) -> str:
    """Return the address of a page of the console."""
    return f"{path}?{urlencode(query, errors='replace')}" if query else path


def _finalize(value: object) -> object:
    """Return what is put into a page for a value; what is markup already stays as it is."""
    if value is None:
        return words.NOT_KNOWN
    if isinstance(value, str) and not hasattr(value, "__html__"):
        return words.visible(value)
    return value
