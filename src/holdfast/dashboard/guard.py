"""Around every request: the headers of each answer, and what is refused before anything is looked at."""

from __future__ import annotations

from urllib.parse import parse_qsl, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from holdfast.dashboard.view import NotShown

POLICY = "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
"""No script and no style inside a page, nothing from elsewhere, no frame around it."""

HEADERS = {
    "content-security-policy": POLICY,
    "x-frame-options": "DENY",
    "x-content-type-options": "nosniff",
    # Not `no-referrer`: with that a browser sends `Origin: null` with our own forms.
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
}
MAX_FORM = 64 * 1024
"""The largest form, in bytes."""


class Guard:
    """Adds the headers. Pages are never stored; what has a cache-control of its own keeps it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return

        async def out(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                headers.setdefault("cache-control", "no-store")
                if scope["scheme"] == "https":
                    headers["strict-transport-security"] = "max-age=31536000"
            await send(message)

        await self._app(scope, receive, out)


def check_origin(headers: Headers) -> None:
    """Raise NotShown unless a browser says that one of our own pages sent the request.

    Every browser sends `Origin` with a form, and most send `Sec-Fetch-Site`.
    """
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    try:
        is_ours = origin is not None and urlsplit(origin).netloc.lower() == headers.get("host", "").lower()
    except ValueError:
        is_ours = False
    if (site is None and origin is None) or site not in (None, "same-origin") or (origin is not None and not is_ours):
        raise NotShown(403, "This request did not come from a page of this dashboard.")


async def form_of(request: Request) -> dict[str, str]:
    """The fields of a form. Raises NotShown if they are too large, or not a form."""
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/x-www-form-urlencoded":
        raise NotShown(415, "This is not a form.")
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > MAX_FORM:
            raise NotShown(413, "This form is too large.")
    try:
        return dict(parse_qsl(body.decode(), keep_blank_values=True, strict_parsing=bool(body), max_num_fields=1000))
    except ValueError:
        raise NotShown(400, "This form cannot be read.") from None
