"""`holdfast doctor` for a service."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import urlsplit

from holdfast.protocol import answers
from holdfast.store import Finding
from holdfast.stores.http.address import HttpAddress

SOON_S = 24 * 3600
OFF_S = 5.0


def findings(address: HttpAddress, info: answers.Session, sent: float, came: float) -> Sequence[Finding]:
    """Findings about the transport, the token and the clocks."""
    host = urlsplit(address.base).hostname
    found = [Finding("ok", "service", f"{address.base} answers, in {1000 * (came - sent):.0f} ms")]
    if not address.is_secure:
        found.append(Finding("warn", "transport", f"the connection to {host} is not encrypted", "use https://"))
    left_s = info.expires_at.timestamp() - came
    scopes = ", ".join(info.scopes) or "none"
    text = f"for tenant {info.tenant!r}, scopes {scopes}, valid for {left_s / 3600:.1f} h"
    if left_s < SOON_S:
        cure = "renew it, or pass a function as token= that returns a current one"
        found.append(Finding("warn", "token", text, cure))
    else:
        found.append(Finding("ok", "token", text))
    off_s = info.now.timestamp() - (sent + came) / 2
    level = "ok" if abs(off_s) < OFF_S else "warn"
    found.append(
        Finding(level, "clock", f"this machine and the store differ by {abs(off_s):.1f} s; the store's clock decides")
    )
    return found
