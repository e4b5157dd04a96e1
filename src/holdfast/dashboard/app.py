"""The dashboard as an application: a Starlette application of its own, for any server or to be mounted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import asynccontextmanager
from hmac import compare_digest
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

from msgspec import json
from msgspec.structs import replace
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from holdfast.blobs import Blobs
from holdfast.core.errors import HoldfastError, StoreError
from holdfast.dashboard.access import Access, ByToken, cookie_name
from holdfast.dashboard.guard import Guard, check_origin, form_of
from holdfast.dashboard.live import LivePages, Rendered
from holdfast.dashboard.oidc import BEGIN, PENDING_S, RETURN, Issuer, Pending
from holdfast.dashboard.page import Action, Form, WebPage
from holdfast.dashboard.pages import PAGES
from holdfast.dashboard.rendering import STATIC, Templates, static_file
from holdfast.dashboard.source import Source
from holdfast.dashboard.turns import PageTurns
from holdfast.dashboard.view import NotShown, View, Viewer, tenant_of
from holdfast.extensions import SingleTenant
from holdfast.service.errors import STATUS, Refusal, code_of, detail_of
from holdfast.service.shares import Shares
from holdfast.store import Store
from holdfast.telemetry.audit import audited
from holdfast.telemetry.logging import get_logger

_log = get_logger(__name__)

MAX_STREAMS, MAX_STREAMS_OF_TENANT = 1000, 200
STREAM_S = 600.0
"""How long a stream lasts; then the browser opens the next one."""
MAX_COOKIE = 3800
"""Browsers drop cookies of 4,096 bytes and more."""
FLASH, FLASH_S = "holdfast-done", 30
_YEAR = "public, max-age=31536000, immutable"
_OURS = ("fragment", "page", "tenant")
"""Parameters of the dashboard itself, not of a page."""


class LoginNeeded(Exception):
    """The request needs a session."""


class Dashboard:
    """The pages of one store. An ASGI application; `lifespan` opens and closes what it holds.

    `trail` is called with each line of the audit log, besides the logger. `note` is called with each request and its
    viewer: it may count or refuse the request. `streams` bounds the open pages, of each tenant's tokens and in all. The
    page Proof shows the certificate and the audit in the directory `proof`.
    """

    def __init__(
        self,
        store: Store,
        access: Access,
        *,
        blobs: Blobs | None = None,
        tenant: str = "",
        url: str = "",
        proof: Path | None = None,
        trail: Callable[[dict[str, Any]], None] | None = None,
        note: Callable[[Request, Viewer], None] | None = None,
        streams: Shares | None = None,
        pages: Iterable[WebPage] = PAGES,
        stream_s: float = STREAM_S,
    ) -> None:
        self.access = access
        self.pages = {page.path: page for page in pages}
        self._source = Source(store, blobs=blobs, tenant=tenant, url=url, proof=proof)
        self._trail, self._note = trail, note
        self._streams = streams or Shares("event streams", process=MAX_STREAMS, tenant=MAX_STREAMS_OF_TENANT)
        self._stream_s = stream_s
        self._templates = Templates()
        self._turns = PageTurns()
        self.live = LivePages(store, self._fragment, self._turns)
        self._opening = asyncio.Lock()
        self._is_open = False
        routes = [Route(page.path, self._endpoint(self._page, page)) for page in self.pages.values()]
        routes += [
            Route(action.path, self._endpoint(self._act, page, action), methods=["POST"])
            for page in self.pages.values()
            for action in page.actions
        ]
        self._app = Guard(
            Starlette(
                routes=[
                    *routes,
                    Route("/live", self._endpoint(self._live)),
                    Route("/static/{name}", self._static),
                    Route("/login", self._endpoint(self._login_page)),
                    Route("/login", self._endpoint(self._log_in), methods=["POST"]),
                    Route(BEGIN, self._endpoint(self._begin_at_issuer)),
                    Route(RETURN, self._endpoint(self._return_from_issuer)),
                    Route("/logout", self._endpoint(self._log_out), methods=["POST"]),
                ],
                exception_handlers={HTTPException: self._not_routed},
            )
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)

    async def open(self) -> None:
        """Open the store and read the keys. Calling it twice is harmless; the first request does it too."""
        if self._is_open:
            return
        async with self._opening:
            if not self._is_open:
                await self._source.open()
                await self.access.open()
                self._is_open = True

    def stop(self) -> None:
        """End the streams, so that a server can stop."""
        self.live.stop()

    async def close(self) -> None:
        """Release what is held. The owner of the store closes it."""
        self.stop()
        await self._source.close()
        await self.access.close()

    @asynccontextmanager
    async def lifespan(self) -> AsyncGenerator[None]:
        """Open, and close at the end."""
        await self.open()
        try:
            yield
        finally:
            await self.close()

    # Each request ------------------------------------------------------------------------------------------

    def _endpoint(self, handle: Callable[..., Any], *known: Any) -> Callable[[Request], Any]:
        """A route that answers every refusal and error with a page."""

        async def endpoint(request: Request) -> Response:
            try:
                await self.open()
                return await handle(request, *known)
            except LoginNeeded:
                return self._to_login(request)
            except NotShown as refused:
                return self._error(request, refused.status, str(refused))
            except HoldfastError as error:
                if isinstance(error, StoreError):
                    _log.warning("a page was not shown", path=request.url.path, error=error)
                return self._error(request, STATUS[code_of(error)], detail_of(error))
            except Exception:  # noqa: BLE001 - the browser gets a page, and the log the error
                _log.exception("a page failed", path=request.url.path)
                return self._error(request, 500, "This page failed. The log has the reason.")

        return endpoint

    async def _viewer(self, request: Request) -> Viewer:
        viewer = await self.access.viewer(request)
        if viewer is None:
            raise LoginNeeded
        store = self._source.store
        if isinstance(store, SingleTenant):
            viewer = replace(viewer, tenant=tenant_of(viewer, store.bind(None)))
        if self._note is not None:
            self._note(request, viewer)
        return viewer

    async def _view(self, request: Request, page: WebPage, path: str = "") -> View:
        """The request for a page. Raises NotShown if the viewer may not see it."""
        viewer = await self._viewer(request)
        query = {name: text for name, text in request.query_params.items() if name not in _OURS and text}
        tenant = tenant_of(viewer, request.query_params.get("tenant", ""))
        if page.of_tenant:
            tenant = tenant or await self._source.only_tenant()
            if not tenant:
                raise _NoTenant(f"{_base(request)}/tenants")
        elif not viewer.is_operator:
            raise NotShown(404, "There is no such page.")
        if not viewer.may_see(page.scope):
            raise NotShown(403, f"Your token needs the scope {page.scope} to see this.")
        return View(self._source, viewer, path or page.path, query, base=_base(request), tenant=tenant)

    # Pages -------------------------------------------------------------------------------------------------

    async def _page(self, request: Request, page: WebPage) -> Response:
        try:
            view = await self._view(request, page)
        except _NoTenant as elsewhere:
            return RedirectResponse(elsewhere.to, 303)
        wanted = request.query_params.get("fragment")
        if wanted is not None:
            if wanted not in page.fragments:
                raise NotShown(404, "There is no such part of this page.")
            rendered = await self.live.fragment(page, wanted, view)
            return HTMLResponse(rendered.html, headers={"x-fragment-tag": rendered.tag})
        async with self._turns.of(view.viewer):
            model = await page.read(view)
            fragments = {name: await self._fragment(page, name, view) for name in page.fragments}
        flash = self.access.sessions.verified("flash", request.cookies.get(FLASH, ""))
        response = self._html(
            request, page.template, view.viewer, view=view, page=page, fragments=fragments,
            flash="" if flash is None else flash.decode(), **model,
        )  # fmt: skip
        if FLASH in request.cookies:
            response.delete_cookie(FLASH, path=_base(request) or "/")
        return response

    async def _fragment(self, page: WebPage, name: str, view: View) -> Rendered:
        model = await page.fragments[name].read(view)
        return self._templates.block(page.template, name, {"view": view, "page": page, **model})

    async def _live(self, request: Request) -> Response:
        page = self.pages.get(request.query_params.get("page", ""))
        if page is None:
            raise NotShown(404, "There is no such page.")
        try:
            view = await self._view(request, page)
        except _NoTenant:
            raise NotShown(404, "There is no such page.") from None
        hold = self._streams.hold(view.viewer.tenant or "")
        hold.check()
        return _EventResponse(self.live.stream(page, view, hold, self.access.holds, self._stream_s))

    async def _static(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in STATIC:
            return Response(status_code=404)
        return Response(static_file(name), media_type=STATIC[name], headers={"cache-control": _YEAR})

    # Actions -----------------------------------------------------------------------------------------------

    async def _act(self, request: Request, page: WebPage, action: Action) -> Response:
        """Check the sender, the origin and the rights; act; record it; show the page again."""
        check_origin(request.headers)
        view = await self._view(request, page, action.path)
        form = Form(await form_of(request))
        self._check_form(form, view.viewer)
        form, named = _agreed(view, form, action)
        client = request.client
        with audited(
            action.name, also=self._trail, via="dashboard", sub=view.viewer.name, jti=view.viewer.token_id,
            address=client.host if client else "", tenant=view.tenant, **named,
        ) as facts:  # fmt: skip
            if not view.may(action.scope):
                raise NotShown(403, f"Your token needs the scope {action.scope} to do this.")
            async with self._turns.of(view.viewer):
                done = await action.act(view, form)
            facts.update(done.facts)
        self.live.changed(view.tenant)
        response = RedirectResponse(done.to or _back(request, form, view.url(page.path)), 303)
        self._set_cookie(request, response, FLASH, self.access.sessions.sign("flash", done.says.encode()), FLASH_S)
        return response

    def _check_form(self, form: Form, viewer: Viewer | None) -> None:
        if not compare_digest(form.text("form_token").encode(), self.access.sessions.form_token(viewer).encode()):
            raise NotShown(403, "This form is not from your session. Load the page again, then send it once more.")

    # Login -------------------------------------------------------------------------------------------------

    async def _login_page(self, request: Request, wrong: str = "", status: int = 200) -> Response:
        if not self.access.has_login or (not wrong and await self.access.viewer(request) is not None):
            return RedirectResponse(f"{_base(request)}/", 303)
        return self._html(
            request, "login.html", None, status, wrong=wrong, next=_inside(request, request.query_params.get("next"))
        )

    async def _log_in(self, request: Request) -> Response:
        check_origin(request.headers)
        if not isinstance(self.access, ByToken) or not self.access.takes_tokens:
            raise NotShown(404, "There is no such page.")
        form = Form(await form_of(request))
        self._check_form(form, None)
        try:
            viewer = await self.access.log_in(form.text("token"), request.client.host if request.client else "")
        except Refusal as refusal:
            return await self._login_page(request, str(refusal), STATUS.get(refusal.code, 401))
        response = RedirectResponse(_inside(request, form.text("next")) or f"{_base(request)}/", 303)
        return await self._logged_in(request, viewer, response)

    async def _logged_in(self, request: Request, viewer: Viewer, response: Response) -> Response:
        """Begin a new session with this answer, and end the one before it."""
        sessions, name = self.access.sessions, cookie_name(request)
        cookie, lifetime_s = sessions.start(viewer)
        if len(cookie) > MAX_COOKIE:
            why = "This token names more queues than a session can hold. Use one for fewer queues, or for all."
            return await self._login_page(request, why, 400)
        before = sessions.viewer(request.cookies.get(name, ""))
        if before is not None:
            await self.access.end(before)
        self._set_cookie(request, response, name, cookie, int(lifetime_s))
        return response

    def _issuer(self) -> Issuer:
        if self.access.issuer is None:
            raise NotShown(404, "There is no such page.")
        return self.access.issuer

    async def _begin_at_issuer(self, request: Request) -> Response:
        """Redirect the browser to the issuer. A link leads here, since our policy lets no form end at another site."""
        to, pending = await self._issuer().begin(_inside(request, request.query_params.get("next")))
        response = RedirectResponse(to, 303)
        self._set_pending(request, response, self.access.sessions.sign("oidc", json.encode(pending)), PENDING_S)
        return response

    async def _return_from_issuer(self, request: Request) -> Response:
        """Log in a person who comes back. The answer is a page and no redirect: see continue.html."""
        issuer = self._issuer()
        data = self.access.sessions.verified("oidc", request.cookies.get(_pending_name(issuer), ""))
        pending = None if data is None else json.decode(data, type=Pending)
        address = request.client.host if request.client else ""
        try:
            viewer, following = await issuer.finish(pending, request.query_params, address)
        except Refusal as refusal:
            response = await self._login_page(request, str(refusal), STATUS.get(refusal.code, 401))
        else:
            to = _inside(request, following) or f"{_base(request)}/"
            response = await self._logged_in(request, viewer, self._html(request, "continue.html", None, to=to))
        self._set_pending(request, response, "", 0)
        return response

    def _set_pending(self, request: Request, response: Response, value: str, max_age: int) -> None:
        """Set the cookie of a login in progress. With Lax, browsers send it when they come back from the issuer."""
        issuer = self._issuer()
        path = "/" if issuer.is_secure else _base(request) or "/"
        response.set_cookie(
            _pending_name(issuer), value, max_age, path=path, secure=issuer.is_secure, httponly=True, samesite="lax"
        )

    async def _log_out(self, request: Request) -> Response:
        check_origin(request.headers)
        viewer = await self._viewer(request)
        self._check_form(Form(await form_of(request)), viewer)
        await self.access.end(viewer)
        response = RedirectResponse(f"{_base(request)}/login", 303)
        self._set_cookie(request, response, cookie_name(request), "", 0)
        return response

    def _to_login(self, request: Request) -> Response:
        """Redirect requests for pages to the login. Refuse requests for parts of pages, and actions."""
        if request.method != "GET" or "fragment" in request.query_params or request.url.path.endswith("/live"):
            return self._error(request, 401, "Your session is over. Log in again.")
        asked = f"{request.url.path}?{request.url.query}" if request.url.query else request.url.path
        return RedirectResponse(f"{_base(request)}/login?{urlencode({'next': asked})}", 303)

    @staticmethod
    def _set_cookie(request: Request, response: Response, name: str, value: str, max_age: int) -> None:
        secure = request.url.scheme == "https"
        # The prefix __Host- asks for the path /.
        path = "/" if name.startswith("__Host-") else _base(request) or "/"
        response.set_cookie(name, value, max_age, path=path, secure=secure, httponly=True, samesite="strict")

    # Answers -----------------------------------------------------------------------------------------------

    def _html(
        self, request: Request, template: str, viewer: Viewer | None, status: int = 200, **variables: Any
    ) -> Response:
        shared: dict[str, Any] = {
            "base": _base(request),
            "viewer": viewer,
            "form_token": self.access.sessions.form_token(viewer),
            "has_login": self.access.has_login,
            "takes_tokens": self.access.takes_tokens,
            "issuer": self.access.issuer,
            "pages": [page for page in self.pages.values() if page.nav],
            "store": self._source.shown,
            "flash": "",
            "view": None,
            "page": None,
            "fragments": {},
        }
        return HTMLResponse(self._templates.page(template, {**shared, **variables}), status)

    def _error(self, request: Request, status: int, why: str) -> Response:
        return self._html(request, "error.html", None, status, code=status, why=why)

    async def _not_routed(self, request: Request, error: Exception) -> Response:
        status = error.status_code if isinstance(error, HTTPException) else 500
        why = "There is no such page." if status == 404 else "This address takes no such requests."  # noqa: PLR2004
        return self._error(request, status, why)


def _agreed(view: View, form: Form, action: Action) -> tuple[Form, dict[str, str]]:
    """Give the form and the view's query the same facts, so that the trail records what is acted on. Returns both."""
    named = {name: form.fields.get(name) or view.query.get(name, "") for name in action.facts}
    if any(view.query.get(name, text) != text for name, text in named.items()):
        raise NotShown(400, "This form and its address name different things.")
    view.query = {**view.query, **{name: text for name, text in named.items() if text}}
    return Form({**form.fields, **named}), named


def _pending_name(issuer: Issuer) -> str:
    return f"{'__Host-' if issuer.is_secure else ''}holdfast-login"


class _NoTenant(Exception):
    """The page is for one tenant, and none is named."""

    def __init__(self, to: str) -> None:
        super().__init__(to)
        self.to = to


class _EventResponse(StreamingResponse):
    """Server-sent events. However the request ends, the stream is closed."""

    def __init__(self, parts: AsyncGenerator[bytes]) -> None:
        super().__init__(parts, media_type="text/event-stream", headers={"x-accel-buffering": "no"})
        self._parts = parts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._parts.aclose()


def _base(request: Request) -> str:
    """Where the dashboard is mounted, without a slash at the end."""
    return str(request.scope.get("root_path", "")).rstrip("/")


def _back(request: Request, form: Form, default: str) -> str:
    return _inside(request, form.text("back")) or default


def _inside(request: Request, address: str | None) -> str:
    """An address if it is one of our own pages, else "": a redirect never leads elsewhere."""
    if not address or not address.startswith(f"{_base(request)}/") or address.startswith("//"):
        return ""
    parts = urlsplit(address)
    is_plain = not parts.scheme and not parts.netloc and "\\" not in address and address.isprintable()
    return address if is_plain else ""
