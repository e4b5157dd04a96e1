"""What operators do with the pages, from start to end. Each task has a tenant of its own, and checks the store."""

import asyncio
from datetime import UTC, datetime, timedelta

from holdfast import Flow, Queue, Worker, job
from holdfast.core.job import ClaimRequest, Finish, JobKey, Progress, Report
from holdfast.store import WorkerInfo
from tests.dashboard.making import claimed, fail

TASKS = {}
HOUR_MS = 3_600_000


def task(function):
    """Register a task under its name in plain words."""
    TASKS[function.__name__.replace("_", " ")] = function
    return function


class Desk:
    """A person at a page of a browser, and the jobs of a tenant."""

    def __init__(self, page, store, tenant):
        self.page, self.store, self.tenant = page, store, tenant
        self.queue = Queue(store=store, tenant=tenant)

    async def go(self, path, **query):
        """Open a page of the tenant."""
        asked = "".join(f"&{name}={value}" for name, value in query.items())
        await self.page.goto(f"{path}?tenant={self.tenant}{asked}")

    async def open_live(self, path, **query):
        """Open a page, and wait until it is live. It must not be loaded again from here on."""
        await self.go(path, **query)
        await self.page.locator("#status.on").wait_for(state="attached")
        await self.page.evaluate("window.same = true")

    async def is_same(self):
        return await self.page.evaluate("window.same === true")

    async def press(self, name, *, exact=True):
        await self.page.get_by_role("button", name=name, exact=exact).first.click()

    async def confirm(self, ask, yes):
        await self.page.locator("summary", has_text=ask).first.click()
        await self.press(yes)

    async def see(self, text, *, exact=False):
        await self.page.get_by_text(text, exact=exact).first.wait_for()

    async def rows(self):
        """The ids in the list."""
        return await self.page.locator("a.row").all_inner_texts()

    async def state(self, id, queue="mail"):
        (job,) = await self.store.get([JobKey(self.tenant, queue, id)])
        return None if job is None else str(job.state)

    async def fail(self, *ids, message="no luck", error="Boom", type="send"):
        await fail(self.store, ids, message, error=error, tenant=self.tenant, type=type)

    async def claimed(self, id):
        return await claimed(self.store, JobKey(self.tenant, "mail", id))

    async def search(self, label, text):
        await self.page.get_by_label(label, exact=True).fill(text)
        await self.press("Search")


@task
async def find_why_a_job_waits(at):
    await at.queue.enqueue({"n": 1}, queue="mail", id="first")
    await at.queue.enqueue({"n": 2}, queue="mail", id="mine")
    await at.queue.pause("mail")
    await at.go("/jobs")
    await at.page.get_by_role("link", name="mine", exact=True).click()
    await at.see("Why it is ready")
    await at.see("is paused")
    await at.see("1 job of this tenant is ahead in this queue.")


@task
async def pause_and_resume_a_queue(at):
    await at.queue.enqueue({"n": 1}, queue="mail", id="a")
    await at.go("/queues")
    await at.press("Pause")
    await at.see("Paused mail.")
    assert (await at.queue.stats("mail")).paused
    await at.press("Resume")
    await at.see("Resumed mail.")
    assert not (await at.queue.stats("mail")).paused


@task
async def find_a_job_by_the_beginning_of_its_id(at):
    for id in ("order-17", "order-18", "refund-17"):
        await at.queue.enqueue({"n": 1}, queue="mail", id=id)
    await at.go("/")
    await at.page.keyboard.press("/")
    await at.page.wait_for_function("document.activeElement.name === 'id'")
    await at.page.keyboard.type("order-1")
    await at.page.keyboard.press("Enter")
    await at.page.wait_for_url("**id=order-1**")
    assert sorted(await at.rows()) == ["order-17", "order-18"]


@task
async def find_jobs_by_error(at):
    await at.fail("a", message="the disk is full")
    await at.fail("b", message="no route to host")
    await at.go("/jobs", state="failed")
    await at.search("Last error", "disk")
    await at.page.wait_for_url("**error=disk**")
    assert await at.rows() == ["a"]


@task
async def find_jobs_by_type(at):
    await at.fail("a", type="resize")
    await at.fail("b", type="send")
    await at.go("/jobs")
    await at.search("Type", "resize")
    await at.page.wait_for_url("**type=resize**")
    assert await at.rows() == ["a"]


@task
async def find_jobs_by_time(at):
    await at.queue.enqueue({"n": 1}, queue="mail", id="now")
    await at.queue.enqueue({"n": 1}, queue="mail", id="tomorrow", delay=timedelta(hours=20))
    await at.go("/jobs")
    await at.search("Since", f"{datetime.now(UTC) + timedelta(hours=10):%Y-%m-%d %H:%M}")
    await at.page.wait_for_url("**since=**")
    assert await at.rows() == ["tomorrow"]


@task
async def follow_a_run_live(at):
    await at.queue.enqueue({"n": 1}, queue="mail", id="run")
    await at.open_live("/job", queue="mail", id="run")
    (job,) = (await at.store.claim(ClaimRequest(at.tenant, ("mail",), 1, 60_000, "w1", 0.5))).jobs
    await at.page.locator(".head .state", has_text="leased").wait_for()
    await at.store.report([Report(job.key, job.token, Progress(0.5, "half of it"))])
    await at.see("50 % half of it")
    await at.store.finish([Finish(job.key, job.token, "complete")])
    await at.page.locator(".head .state", has_text="completed").wait_for()
    assert await at.is_same()


@task
async def cancel_a_waiting_job(at):
    await at.queue.enqueue({"n": 1}, queue="mail", id="waits")
    await at.go("/job", queue="mail", id="waits")
    await at.confirm("Cancel", "Cancel the job")
    await at.see("Canceled waits.")
    assert await at.state("waits") == "canceled"


@task
async def cancel_a_running_job(at):
    job = await at.claimed("runs")
    await at.go("/job", queue="mail", id="runs")
    await at.page.locator("summary", has_text="Cancel").click()
    await at.see("It is running: its handler is stopped.")
    await at.press("Cancel the job")
    await at.see("Canceled runs.")
    assert await at.state("runs") == "canceled"
    (answer,) = await at.store.finish([Finish(job.key, job.token, "complete")])
    assert type(answer).__name__ != "Finished"


@task
async def replay_one_dead_letter(at):
    await at.fail("bad", "other")
    await at.go("/jobs", state="failed")
    await at.page.get_by_role("link", name="bad", exact=True).click()
    await at.press("Replay")
    await at.see("Replayed bad")
    assert (await at.state("bad"), await at.state("other")) == ("ready", "failed")


@task
async def read_an_attempts_traceback(at):
    await at.fail("bad", message="the disk is full")
    await at.go("/job", queue="mail", id="bad")
    await at.see("Failed attempts")
    await at.see('File "send.py", line 3')
    await at.page.locator("details.attempt summary").click()
    assert not await at.page.get_by_text('File "send.py", line 3').is_visible()


@task
async def copy_the_command_for_the_same(at):
    await at.queue.enqueue({"n": 1}, queue="mail", id="mine")
    await at.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    await at.go("/job", queue="mail", id="mine")
    await at.page.locator("[data-copy^='holdfast explain']").click()
    await at.see("Copied", exact=True)
    found = await at.page.evaluate("navigator.clipboard.readText()")
    assert found == f"holdfast explain mine --tenant {at.tenant} --queue mail"


@task
async def replay_a_group_of_dead_letters(at):
    await at.fail("a1", "a2", "a3", error="DiskFull", message="the disk is full")
    await at.fail("b1", error="NoRoute", message="no route to host")
    await at.go("/dead")
    await at.page.get_by_role("link", name="DiskFull").click()
    await at.page.get_by_role("link", name="Replay…").click()
    await at.see("Dry run: nothing has been replayed yet")
    assert await at.state("a1") == "failed"
    await at.press("Replay")
    await at.see("All replayed")
    assert [await at.state(id) for id in ("a1", "a2", "a3", "b1")] == ["ready"] * 3 + ["failed"]


@task
async def purge_a_group_after_a_dry_run(at):
    await at.fail("a1", "a2", error="DiskFull", message="the disk is full")
    await at.fail("b1", error="NoRoute", message="no route to host")
    await at.go("/dead")
    await at.page.get_by_role("link", name="DiskFull").click()
    await at.page.locator(".head").get_by_role("link", name="Purge…").click()
    await at.see("Dry run: nothing has been purged yet")
    await at.see("2 jobs", exact=True)
    await at.press("Purge")
    await at.see("All purged")
    assert [await at.state(id) for id in ("a1", "a2", "b1")] == [None, None, "failed"]


@task
async def purge_a_finished_job(at):
    await at.fail("bad")
    await at.go("/job", queue="mail", id="bad")
    await at.confirm("Purge", "Purge the job")
    await at.see("Purged bad.")
    assert await at.state("bad") is None


@job(queue="steps")
async def step(n: int) -> int:
    return n


def _flow():
    flow = Flow("report", "nightly")
    first = flow.add(step.message(1), name="extract")
    flow.add(step.message(2), name="load", after=[first], delay=HOUR_MS / 1000)
    return flow


@task
async def see_why_a_flow_waits_and_cancel_it(at):
    await at.queue.start(_flow())
    await at.go("/flows")
    await at.page.locator("a.row", has_text="nightly").click()
    await at.see("Waits for extract")
    await at.confirm("Cancel", "Cancel the flow")
    await at.see("Canceled nightly and its open steps.")
    assert str((await at.queue.flow("nightly")).state) == "canceled"


@task
async def follow_a_flow_live(at):
    """A worker runs the first step while a person looks on."""
    await at.queue.start(_flow())
    await at.open_live("/flow", id="nightly")
    await at.page.locator("a.box.s-blocked").first.wait_for()
    worker = Worker(at.queue, jobs=[step])
    async with asyncio.TaskGroup() as running:
        running.create_task(worker.run(signals=False))
        await at.page.locator("a.box.s-completed").wait_for()
        await at.page.locator("a.box.s-scheduled").wait_for()
        await worker.stop()
    await at.see("1 of 2 steps completed")
    assert await at.is_same()


@task
async def see_what_a_worker_holds(at):
    await at.store.beat(WorkerInfo("w1", at.tenant, "host-1", 4711, ("mail",), 8, 1), HOUR_MS)
    await at.claimed("held")
    await at.go("/workers")
    await at.page.get_by_role("link", name="w1", exact=True).click()
    await at.see("host-1")
    assert await at.rows() == ["held"]


@task
async def go_from_a_running_job_to_its_worker(at):
    await at.store.beat(WorkerInfo("w1", at.tenant, "host-1", 4711, ("mail",), 8, 1), HOUR_MS)
    await at.claimed("held")
    await at.go("/job", queue="mail", id="held")
    await at.page.get_by_role("link", name="w1", exact=True).first.click()
    await at.see("host-1")


@task
async def change_a_tenants_weight_and_quota(at):
    await at.queue.enqueue({"n": 1}, queue="mail")
    await at.page.goto(f"/tenants?name={at.tenant}")
    await at.page.get_by_role("link", name="Settings").click()
    await at.page.get_by_label("Weight").fill("4")
    await at.page.get_by_label("Most waiting jobs").fill("500")
    await at.press("Set")
    await at.see(f"Set for {at.tenant}: weight 4")
    (own,) = [one for one in await at.queue.tenant_settings() if one.queue is None]
    assert (own.weight, own.max_waiting) == (4, 500)


@task
async def run_a_schedule_now(at):
    await at.queue.schedule("nightly", {"n": 1}, cron="30 2 * * *", queue="mail")
    await at.go("/schedules")
    await at.press("Run now")
    await at.see("Enqueued nightly@")
    (job,) = await at.queue.list(queue="mail")
    assert job.id.startswith("nightly@")


@task
async def remove_a_schedule(at):
    await at.queue.schedule("nightly", {"n": 1}, cron="30 2 * * *", queue="mail")
    await at.go("/schedule", name="nightly")
    await at.see("Next ticks")
    await at.confirm("Remove", "Remove it")
    await at.see("Removed nightly.")
    assert await at.queue.get_schedule("nightly") is None


@task
async def watch_events_live(at):
    await at.open_live("/events")
    await at.fail("just-now", message="it just happened")
    await at.see("it just happened")
    assert "just-now" in await at.rows()
    assert await at.is_same()


@task
async def watch_queues_fill_live(at):
    await at.open_live("/queues")
    await at.see("No queue has jobs")
    await at.queue.enqueue({"n": 1}, queue="press")
    await at.page.get_by_role("link", name="press", exact=True).wait_for()
    assert await at.is_same()


@task
async def read_the_proof_and_ask_the_doctor(at):
    await at.go("/proof")
    await at.see("What this store promises")
    await at.page.get_by_role("link", name="Run the checks").click()
    await at.page.get_by_role("link", name="Run again").wait_for()


@task
async def find_the_busiest_queue_and_its_failures(at):
    await at.fail("bad")
    await at.queue.enqueue_many([{"n": n} for n in range(5)], queue="press")
    await at.go("/")
    busiest = at.page.locator("section", has=at.page.get_by_role("heading", name="Busiest queues"))
    assert (await busiest.locator("a.row").all_inner_texts())[0] == "press"
    await busiest.get_by_role("row").filter(has_text="mail").locator("a.count.s-failed").click()
    await at.page.wait_for_url("**state=failed**")
    assert await at.rows() == ["bad"]


@task
async def do_it_by_keyboard_alone(at):
    """Pause a queue, go to the jobs, walk the rows, open one and cancel it: no mouse."""
    for id in ("a", "b", "c"):
        await at.queue.enqueue({"n": 1}, queue="mail", id=id)
    keys = at.page.keyboard
    await at.go("/queues")
    await at.page.get_by_role("button", name="Pause").focus()
    await keys.press("Enter")
    await at.see("Paused mail.")
    await keys.press("?")
    await at.see("search for a job")
    await keys.press("Escape")
    await keys.press("g")
    await keys.press("b")
    await at.page.wait_for_url("**/jobs?**")
    walked = []
    for key in ("j", "j", "k"):
        await keys.press(key)
        walked.append(await at.page.evaluate("document.activeElement.textContent"))
    assert walked[0] == walked[2] != walked[1]
    await keys.press("Enter")
    await at.page.wait_for_url("**/job?**")
    await reach(at.page, "summary.button")
    await keys.press("Enter")
    await keys.press("Tab")
    await keys.press("Enter")
    await at.see(f"Canceled {walked[0]}.")
    assert await at.state(walked[0]) == "canceled"


@task
async def read_the_throughput_by_keyboard(at):
    await at.queue.enqueue({"n": 1}, queue="mail")
    await at.go("/")
    await reach(at.page, "figure.values")
    said, place = [], at.page.locator("figure.values output")
    for _ in range(3):
        await at.page.keyboard.press("ArrowLeft")
        said.append(await place.inner_text())
    assert len(set(said)) == 3, said
    assert all(text[2] == ":" for text in said), said


async def reach(page, selector):
    """Press Tab until an element has the focus: it can be reached, and the focus can be seen there."""
    for _ in range(60):
        await page.keyboard.press("Tab")
        if await page.evaluate("what => document.activeElement.matches(what)", selector):
            assert await page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none"
            return
    raise AssertionError(f"no way to {selector} by keyboard")


async def do_all(page, store, names=None):
    """All tasks, one after the other, each for a tenant of its own. An error names its task."""
    for number, (name, act) in enumerate(TASKS.items()):
        if names and name not in names:
            continue
        try:
            async with asyncio.timeout(120):
                await act(Desk(page, store, f"desk-{number}"))
        except Exception as error:
            error.add_note(f"the task: {name}")
            raise
