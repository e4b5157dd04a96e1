"""The pages, in the order of the navigation.

To add a page, write two files and a line:

1. `pages/NAME.py`: what it reads for its fragments, its actions, and `PAGE = WebPage("/NAME", "Title", ...)`.
2. `templates/NAME.html`: it extends `layout.html`; the block `main` places each fragment with `{{ live("NAME") }}`, and
   a block of the fragment's name draws it. `ui.html` has what pages share: badges, times, buttons, empty states. A
   fragment is drawn by itself and sees no macros of its own file: put macros there too.
3. Here: the line in `PAGES`.

A page reads through `view.queue` (the tenant's Queue) and `view.store` (always with `view.tenant`). What it reads is
bounded, whatever the backlog. It shows a queue only if `view.sees(queue)`. Tests are in tests/dashboard/test_NAME.py.
"""

from holdfast.dashboard.page import WebPage
from holdfast.dashboard.pages import (
    dead,
    dead_run,
    events,
    flow,
    flows,
    job,
    jobs,
    overview,
    proof,
    queues,
    schedule,
    schedules,
    tenants,
    workers,
)

PAGES: tuple[WebPage, ...] = (
    overview.PAGE, queues.PAGE, jobs.PAGE, job.PAGE, *dead.PAGES, dead_run.PAGE, flows.PAGE, flow.PAGE, schedules.PAGE,
    schedule.PAGE, events.PAGE, *workers.PAGES, *tenants.PAGES, proof.PAGE,
)  # fmt: skip
