"""Jobs in the states that pages show, made by the store's own calls; a real browser; and what a plain page is."""

from contextlib import asynccontextmanager

import pytest
from playwright.async_api import async_playwright

from holdfast.core.job import AttemptError, ClaimRequest, Envelope, Finish, JobKey, NewJob
from tests.dashboard.support import parsed
from tests.machine import chromium, skip_for

HOSTILE = (
    "<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "'><svg onload=alert(1)>", "javascript:alert(1)",
    "{{ 7 * 7 }}{% raw %}", "</textarea></title><b>", "<!--", "]]>", "&lt;b&gt;", "%3Cscript%3E", "../../etc/passwd",
    "a/b?c=d&e=f#g", "<style>*{display:none}</style>", "`${alert(1)}`", "<a href=javascript:alert(1)>", "' OR 1=1 --",
    "<base href=//evil>", "</details></td></table>", "<form action=//evil>", "x" * 150,
)  # fmt: skip
FOREIGN = {"img", "b", "base", "style", "textarea", "iframe", "object", "embed"}
"""Tags that none of the pages has."""
SIZES = {"desk": (1280, 900), "phone": (390, 844)}
FLAGS = ("--no-sandbox", "--disable-background-networking")


async def claimed(store, key, *, type="send", max_attempts=1, worker="w1"):
    """A job that a worker holds."""
    await store.enqueue([NewJob(key, Envelope(type, b'{"to": "ann"}', max_attempts=max_attempts, priority=9))])
    (job,) = (await store.claim(ClaimRequest(key.tenant, (key.queue,), 1, 60_000, worker, 0.5))).jobs
    assert job.key == key
    return job


async def fail(store, ids, message="no luck", *, error="Boom", tenant="acme", queue="mail", type="send"):
    """Dead letters with this error."""
    for id in ids:
        job = await claimed(store, JobKey(tenant, queue, id), type=type)
        reason = AttemptError(error, message, 'Traceback (most recent call last):\n  File "send.py", line 3')
        await store.finish([Finish(job.key, job.token, "fail", None, reason, random=0.5)])


def check_plain(answer):
    """Nothing that came from a job is a tag, an attribute or an address of the page."""
    assert answer.status_code == 200, answer.text
    found = parsed(answer)
    assert not set(found.tags) & FOREIGN, set(found.tags) & FOREIGN
    assert found.tags.count("script") <= 1
    for name, value in found.attributes:
        assert not name.startswith("on"), (name, value)
        assert name != "style"
        if name in ("href", "src", "action", "formaction"):
            assert value.startswith(("/", "#")), value
            assert not value.startswith("//"), value
    return " ".join(found.texts)


@asynccontextmanager
async def chrome(base, *, size="desk", scheme="light", script=True, expected="nothing"):
    """A page of a real browser. It must load nothing from elsewhere, and complain of nothing but what is expected."""
    if lack := skip_for("" if chromium() else "there is no Chromium; install it, on Debian with: apt install chromium"):
        pytest.skip(lack)
    width, height = SIZES[size]
    said, asked = [], []
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=chromium() or "chromium", args=list(FLAGS))
        try:
            page = await browser.new_page(
                viewport={"width": width, "height": height},
                color_scheme=scheme,
                java_script_enabled=script,
                base_url=base,
            )
            page.on("console", lambda message: said.append(message.text))
            page.on("pageerror", lambda error: said.append(str(error)))
            page.on("request", lambda request: asked.append(request.url))
            yield page
            assert not [one for one in said if expected not in one], said
            assert all(url.startswith(base) for url in asked), asked
        finally:
            await browser.close()


async def fits(page):
    """Whether nothing sticks out at the side."""
    return await page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
