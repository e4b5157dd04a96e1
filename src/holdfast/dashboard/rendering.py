"""Templates, and how values are shown. Every text is escaped; a page has no style and no script inside."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from functools import cache
from importlib import resources
from typing import Any

import msgspec
from jinja2 import Environment, PackageLoader, StrictUndefined

from holdfast.core.job import JobState
from holdfast.dashboard.live import Rendered

_SECOND, _MINUTE, _HOUR, _DAY = 1.0, 60.0, 3600.0, 86400.0
_UNITS = ((_DAY, "d"), (_HOUR, "h"), (_MINUTE, "min"), (_SECOND, "s"))
_RELATIVE = re.compile(r"(<time [^>]*>)[^<]*")
"""How long ago something was changes by itself: the browser renews it, and no tag depends on it."""
_KIB = 1024

# The same order and the same colours wherever states are shown.
STATES = (
    JobState.READY, JobState.SCHEDULED, JobState.RETRYING, JobState.BLOCKED, JobState.LEASED,
    JobState.COMPLETED, JobState.FAILED, JobState.CANCELED,
)  # fmt: skip


class Templates:
    """The templates of the package."""

    def __init__(self) -> None:
        env: Any = Environment(
            loader=PackageLoader("holdfast.dashboard"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            auto_reload=False,
        )
        env.filters |= {
            "number": number,
            "bytes": size,
            "duration": duration,
            "at": exact,
            "iso": iso,
            "ago": ago,
            "json": pretty,
            "plural": plural,
        }
        env.globals |= {"STATES": STATES, "static": static_path, "timedelta": timedelta}
        # A fragment is a block that is drawn by itself: it has no imports of its own.
        env.globals["ui"] = env.get_template("ui.html").module
        self._environment = env

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


def number(value: float) -> str:
    """A count with separators."""
    return f"{value:,.0f}" if value == int(value) or abs(value) >= 100 else f"{value:,.1f}"  # noqa: PLR2004


def size(count: int) -> str:
    """A number of bytes."""
    if count < _KIB:
        return f"{count} B"
    return f"{count / _KIB:,.1f} KiB" if count < _KIB * _KIB else f"{count / _KIB / _KIB:,.1f} MiB"


def duration(value: timedelta | float) -> str:
    """A duration in its two largest units, such as `2 h 5 min`; below a second in milliseconds."""
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    seconds = abs(seconds)
    if seconds < _SECOND:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 10 * _SECOND:
        return f"{seconds:.1f} s"
    for n, (unit, name) in enumerate(_UNITS):
        if seconds >= unit:
            whole, rest = divmod(seconds, unit)
            smaller = _UNITS[n + 1] if n + 1 < len(_UNITS) else None
            part = int(rest // smaller[0]) if smaller else 0
            return f"{whole:.0f} {name} {part} {smaller[1]}" if smaller and part else f"{whole:.0f} {name}"
    return "0 s"


def as_datetime(value: datetime | float) -> datetime:
    """An instant; a number is in milliseconds."""
    return value if isinstance(value, datetime) else datetime.fromtimestamp(value / 1000, UTC)


def exact(value: datetime | float) -> str:
    """An instant for people."""
    at = as_datetime(value)
    return f"{at:%Y-%m-%d %H:%M:%S}.{at.microsecond // 1000:03d} UTC"


def iso(value: datetime | float) -> str:
    """An instant for programs."""
    return as_datetime(value).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def ago(value: datetime | float) -> str:
    """An instant relative to now. The script does the same: see `relative` there."""
    left = (as_datetime(value) - datetime.now(UTC)).total_seconds()
    if abs(left) < _SECOND:
        return "now"
    text = coarse(abs(left))
    return f"in {text}" if left > 0 else f"{text} ago"


def coarse(seconds: float) -> str:
    """A duration in its largest unit."""
    unit, name = next(((unit, name) for unit, name in _UNITS if seconds >= unit), _UNITS[-1])
    return f"{seconds // unit:.0f} {name}"


def pretty(value: Any) -> str:
    """A payload or a result as text: JSON, or as Python shows it."""
    try:
        return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
    except (msgspec.MsgspecError, TypeError, ValueError):
        return repr(value)


def plural(count: int, one: str, many: str = "") -> str:
    """`1 job`, `2 jobs`."""
    return f"{number(count)} {one if count == 1 else many or one + 's'}"
