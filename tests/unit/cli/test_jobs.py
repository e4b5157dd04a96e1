from datetime import datetime, timedelta

import pytest

from tests.unit.cli.support import claim, complete, fail


def test_enqueue_answers_like_the_http_service(cli):
    answer = cli("enqueue", "send_email", "-q", "emails", "--id", "e1", "--payload", '{"to": "a@b.c"}', "--json")
    assert answer.code == 0
    warning = "no live worker serves the queue 'emails': the job waits until one does"
    queued = {"status": "queued", "id": "e1", "queue": "emails", "state": "ready", "warnings": [warning]}
    assert (answer.json, answer.err) == (queued, f"Warning: {warning}.\n")
    again = cli("enqueue", "send_email", "-q", "emails", "--id", "e1", "--json")
    assert again.json == {"status": "duplicate", "id": "e1", "queue": "emails", "state": "ready"}


def test_enqueue_prints_the_id_to_a_pipe_and_a_sentence_to_a_terminal(cli):
    answer = cli("enqueue", "pid", "--id", "j1")
    assert answer.out == "j1\n"
    assert answer.err.endswith("\nqueued: j1 in queue default (ready)\n")


@pytest.mark.parametrize("how", ["option", "file", "stdin", "dash"])
def test_a_payload_comes_from_an_option_a_file_or_standard_input(cli, place, how):
    text = '{"to": "ä", "n": [1, 2.5, null]}'
    (place / "payload.json").write_text(text)
    source = {"option": ["--payload", text], "file": ["--payload-file", "payload.json"], "stdin": []}
    source["dash"] = ["--payload-file", "-"]
    assert cli("enqueue", "x", "--id", "j", *source[how], stdin="" if how in ("option", "file") else text).code == 0
    assert cli("status", "j", "--json").json["payload"] == {"to": "ä", "n": [1, 2.5, None]}


def test_all_options_of_enqueue_reach_the_job(cli):
    cli(
        "enqueue", "x", "--id", "j", "--delay", "10m", "--priority", "9", "--max-attempts", "2",
        "--idempotency-key", "once", "--payload", "{}",
    )  # fmt: skip
    job = cli("status", "j", "--json").json
    assert (job["type"], job["state"], job["priority"], job["max_attempts"]) == ("x", "scheduled", 9, 2)
    assert job["idempotency_key"] == "once"
    enqueued, visible = (datetime.fromisoformat(job[name]) for name in ("enqueued_at", "visible_at"))
    assert visible - enqueued == timedelta(minutes=10)
    assert cli("enqueue", "x", "--idempotency-key", "once", "--json").json["id"] == "j"


def test_run_at_names_a_moment(cli):
    cli("enqueue", "x", "--id", "j", "--run-at", "2099-01-31T18:00+01:00")
    job = cli("status", "j", "--json").json
    assert job["visible_at"] == "2099-01-31T17:00:00Z"


@pytest.mark.parametrize(
    "args, reason",
    [
        (("--payload", "{bad"), "--payload is not JSON"),
        (("--payload", "{}", "--payload-file", "x"), "not both"),
        (("--payload-file", "missing.json"), "missing.json: No such file"),
        (("--delay", "soon"), "is not a duration"),
        (("--run-at", "soon"), "is not a time"),
        (("--delay", "1m", "--run-at", "2099-01-01T00:00Z"), "give --delay or --run-at, not both"),
        (("--priority", "10"), "from 0 (last) to 9 (first)"),
        (("--priority", "high"), "--priority"),
        (("--max-attempts", "0"), "from 1 to 100"),
        (("--id", ""), "1 to 200"),
        (("--wait", "long"), "is not a duration"),
        (("--queue", "a b"), "is not allowed"),
    ],
)
def test_bad_options_of_enqueue_are_wrong_usage_and_enqueue_nothing(cli, args, reason):
    answer = cli("enqueue", "x", *args)
    assert answer.code == 2
    assert reason in answer.err
    assert "Traceback" not in answer.err
    assert cli("queues", "--json").json == {"queues": []}


def test_a_job_without_a_type_needs_a_payload(cli):
    answer = cli("enqueue", "-")
    assert answer.code == 2
    assert "pass --payload" in answer.err
    assert cli("enqueue", "-", "--id", "j", stdin="[1]").code == 0
    job = cli("status", "j", "--json").json
    assert (job["type"], job["payload"]) == ("", [1])


def test_a_payload_over_the_limit_is_refused_with_its_size(cli):
    answer = cli("enqueue", "x", stdin='"' + "x" * 300_000 + '"')
    assert answer.code == 2
    assert "the limit is 256 KiB" in answer.err


def test_waiting_for_a_job_that_no_worker_runs_fails_and_says_how_to_wait_again(cli):
    answer = cli("enqueue", "x", "--id", "a job", "--wait", "10ms")
    assert answer.code == 1
    assert "was not done after" in answer.err
    assert "holdfast result 'a job' --queue default" in answer.err


def test_a_completed_job_answers_with_its_result(cli, url):
    cli("enqueue", "x", "--id", "j")
    complete(url, result=b'{"n": 1}')
    assert cli("enqueue", "x", "--id", "j", "--json").json == {
        "status": "completed", "id": "j", "queue": "default", "state": "completed", "result": {"n": 1},
    }  # fmt: skip
    assert cli("enqueue", "x", "--id", "j", "--wait", "1s").out == '{"n":1}\n'
    assert cli("result", "j").out == '{"n":1}\n'
    assert cli("result", "j", "--json").json == {"state": "completed", "result": {"n": 1}}


def test_the_result_of_a_failed_job_is_its_error(cli, url):
    cli("enqueue", "x", "--id", "j")
    fail(url)
    answer = cli("result", "j", "--wait", "5s")
    assert (answer.code, answer.out) == (1, "")
    assert "failed (permanent): ValueError: boom" in answer.err
    answer = cli("result", "j", "--json")
    assert answer.code == 1
    assert answer.json == {
        "state": "failed", "error": {"type": "ValueError", "message": "boom", "reason": "permanent"},
    }  # fmt: skip


def test_a_missing_result_is_an_error_of_its_own(cli):
    cli("enqueue", "x", "--id", "j")
    answer = cli("result", "j")
    assert answer.code == 1
    assert "is ready; wait for it with --wait" in answer.err
    answer = cli("result", "j", "--json")
    assert (answer.code, answer.json) == (1, {"state": "ready"})
    assert cli("result", "j", "--wait", "10ms").code == 1
    answer = cli("result", "j", "--wait", "10ms", "--json")
    assert (answer.code, answer.json) == (1, {"state": "ready"})


def test_a_canceled_job_has_no_result(cli):
    cli("enqueue", "x", "--id", "j")
    cli("cancel", "j")
    answer = cli("result", "j")
    assert answer.code == 1
    assert "was canceled" in answer.err
    answer = cli("result", "j", "--json")
    assert (answer.code, answer.json) == (1, {"state": "canceled"})


@pytest.mark.parametrize("command", ["status", "result", "cancel"])
def test_a_job_is_found_in_any_queue_of_the_tenant(cli, url, command):
    cli("enqueue", "x", "--id", "other")
    cli("enqueue", "x", "--id", "j", "-q", "emails")
    if command == "result":
        complete(url, queue="emails")
    answer = cli(command, "j", "--json").json
    assert answer.get("queue", "emails") == "emails"
    state = cli("status", "j", "-q", "emails", "--json").json["state"]
    assert state == {"status": "ready", "result": "completed", "cancel": "canceled"}[command]


@pytest.mark.parametrize("command", ["status", "result", "cancel"])
def test_an_id_that_two_queues_have_needs_the_queue(cli, command):
    for queue in ("default", "emails"):
        cli("enqueue", "x", "--id", "j", "-q", queue)
    answer = cli(command, "j")
    assert answer.code == 2
    assert "several queues have a job 'j': default, emails; name one with --queue" in answer.err
    assert [cli("status", "j", "-q", queue, "--json").json["state"] for queue in ("default", "emails")] == ["ready"] * 2
    assert cli("cancel", "j", "-q", "emails", "--json").json == {"status": "canceled", "id": "j", "queue": "emails"}
    assert cli("status", "j", "-q", "default", "--json").json["state"] == "ready"


@pytest.mark.parametrize("command", ["status", "result", "cancel"])
def test_an_unknown_id_fails(cli, command):
    cli("enqueue", "x", "-q", "emails")
    answer = cli(command, "j")
    assert answer.code == 1
    assert answer.err == "Error: no job 'j' in queue 'default'\nNor in any other queue of acme.\n"


@pytest.mark.parametrize("command", ["status", "result", "cancel"])
def test_an_unknown_id_fails_and_other_queues_are_named(cli, command):
    cli("enqueue", "x", "--id", "j", "-q", "emails")
    answer = cli(command, "j", "-q", "default")
    assert answer.code == 1
    assert answer.err == (
        "Error: no job 'j' in queue 'default'\nOther queues of acme: emails. Name one with --queue.\n"
    )


def test_another_tenants_job_answers_like_none(cli):
    cli("enqueue", "x", "--id", "j", "--tenant", "other")
    foreign, none = cli("status", "j"), cli("status", "k")
    assert foreign.code == none.code == 1
    assert foreign.err == none.err.replace("'k'", "'j'")


def test_status_shows_a_job_with_its_errors(cli, url):
    cli("enqueue", "x", "--id", "j", "--payload", '{"a": 1}')
    fail(url, message="bad\x1b[2Jthing")
    answer = cli("status", "j")
    pairs = dict(line.split(maxsplit=1) for line in answer.out.splitlines() if line)
    assert pairs["state"] == "failed"
    assert pairs["reason"] == "permanent"
    assert pairs["attempts"] == "1 of 4"
    assert pairs["payload"] == '{"a":1}'
    assert datetime.fromisoformat(pairs["finished"]).tzinfo is not None
    assert "ValueError" in answer.out
    assert "\x1b" not in answer.out
    document = cli("status", "j", "--json").json
    assert document["errors"][0] | {"at": ""} == {
        "type": "ValueError", "message": "bad\x1b[2Jthing", "traceback": "", "attempt": 1, "at": "",
    }  # fmt: skip


def test_cancel_prints_what_it_did(cli, url):
    for id in ("a", "b", "c"):
        cli("enqueue", "x", "--id", id)
    assert cli("cancel", "c").out == "canceled c\n"
    assert claim(url, 1) == ["a"]
    answer = cli("cancel", "a", "--only-waiting")
    assert answer.code == 1
    assert "is running" in answer.err
    assert cli("cancel", "a", "--json").json == {"status": "canceled", "id": "a", "queue": "default"}
    complete(url)
    answer = cli("cancel", "b", "--json")
    assert (answer.code, answer.json["status"]) == (1, "completed")
    answer = cli("cancel", "nothing", "--json")
    assert (answer.code, answer.json["status"]) == (1, "not_found")


def test_a_list_is_filtered_and_continued(cli, url):
    for number in range(5):
        cli("enqueue", "even" if number % 2 == 0 else "odd", "--id", f"j{number}")
    cli("enqueue", "even", "--id", "later", "--delay", "1h")
    page = cli("list", "--limit", "2", "--json").json
    assert [job["id"] for job in page["jobs"]] == ["j0", "j1"]
    rest = cli("list", "--cursor", page["cursor"], "--json").json
    assert [job["id"] for job in rest["jobs"]] == ["j2", "j3", "j4", "later"]
    assert rest["cursor"] is None
    assert [job["id"] for job in cli("list", "--type", "even", "--limit", "2", "--json").json["jobs"]] == ["j0", "j2"]
    assert [job["id"] for job in cli("list", "--state", "scheduled,leased", "--json").json["jobs"]] == ["later"]
    everything = cli("list", "--all", "--limit", "1")
    assert len(everything.out.splitlines()) == 7
    assert everything.out.split()[:6] == ["ID", "QUEUE", "TYPE", "STATE", "RUNS", "ENQUEUED"]
    assert "--cursor" in cli("list", "--limit", "2").err


def test_an_empty_list_says_so_on_standard_error(cli):
    answer = cli("list")
    assert (answer.code, answer.out) == (0, "")
    assert "No jobs match." in answer.err
    assert "No jobs match in queue q." in cli("list", "-q", "q").err
    assert cli("list", "--json").json == {"jobs": [], "cursor": None}
    assert cli("list", "--state", "dead").code == 2
    assert cli("list", "--limit", "0").code == 2
    cli("enqueue", "x")
    assert cli("list", "--cursor", "nowhere").code == 2


def test_a_payload_in_an_unknown_codec_does_not_break_a_list(cli, url):
    import asyncio

    from holdfast.core.job import Envelope, JobKey, NewJob
    from holdfast.opening import open_store

    async def enqueue():
        store = await open_store(url)
        await store.enqueue([NewJob(JobKey("acme", "default", "odd"), Envelope("x", b"?", codec="unknown"))])
        await store.close()

    asyncio.run(enqueue())
    job = cli("list", "--json").json["jobs"][0]
    assert job["id"] == "odd"
    assert "payload" not in job
    assert cli("status", "odd").code == 0
