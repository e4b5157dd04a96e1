"""Templates. Every text is escaped; a page has no style and no script inside."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from holdfast.core.job import JobState
from holdfast.dashboard import showing
from holdfast.dashboard.live import Rendered

_RELATIVE = re.compile(r"(<time [^>]*>)[^<]*")
"""Matches a time with its age. The browser renews ages by itself, so no tag depends on them."""

# The same order and the same colours wherever states are shown.
STATES = (
    JobState.READY, JobState.SCHEDULED, JobState.RETRYING, JobState.BLOCKED, JobState.LEASED,
    JobState.COMPLETED, JobState.FAILED, JobState.CANCELED,
)  # fmt: skip


@cache
def _environment() -> Any:
    """The templates of the package, all compiled, so that the first view of a page does not wait for that."""
    env: Any = Environment(
        loader=PackageLoader("holdfast.dashboard"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    env.filters |= {
        "number": showing.number,
        "bytes": showing.size,
        "duration": showing.duration,
        "rate": showing.per_second,
        "at": showing.exact,
        "iso": showing.iso,
        "ago": showing.ago,
        "plural": showing.plural,
    }
    env.globals |= {"STATES": STATES, "static": static_path}
    # Fragments are drawn as single blocks, without the imports of their file: they need this as a global.
    env.globals["ui"] = env.get_template("ui.html").module
    for name in env.list_templates():
        env.get_template(name)
    return env


class Templates:
    """The templates of the package. All dashboards of a process share them."""

    def __init__(self) -> None:
        self._environment = _environment()

    def page(self, name: str, variables: Mapping[str, Any]) -> str:
        """A whole page."""
        return self._environment.get_template(name).render(variables)

    def block(self, name: str, block: str, variables: Mapping[str, Any]) -> Rendered:
        """One block of a page's template."""
        template = self._environment.get_template(name)
        html = "".join(template.blocks[block](template.new_context(dict(variables))))
        looks = _RELATIVE.sub(r"\1", html).encode(errors="replace")
        return Rendered(html, hashlib.sha256(looks).hexdigest()[:16])


STATIC = {"dashboard.css": "text/css", "dashboard.js": "text/javascript", "icon.svg": "image/svg+xml"}


@cache
def static_file(name: str) -> bytes:
    """A file that pages load."""
    return resources.files("holdfast.dashboard").joinpath("static", name).read_bytes()


@cache
def static_path(name: str) -> str:
    """Its path, which changes with its content, so that browsers keep it."""
    return f"/static/{name}?v={hashlib.sha256(static_file(name)).hexdigest()[:12]}"
