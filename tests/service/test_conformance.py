"""The contract through the HTTP client, as if the service were a store: one test for each check of the shipped suite.

The service runs in a process of its own, on a real socket. See `tests.service.tenants` for what goes over HTTP.
"""

import asyncio

import pytest

from holdfast import store as stores
from holdfast.testing.conformance import Check, Skipped, Spaces, all_checks, perform
from tests.service.tenants import Behind, Tenants


@pytest.fixture(scope="module")
def spaces():
    behind = Behind()
    known = stores._opener

    def opener(scheme):
        return clients if scheme == "behind" else known(scheme)

    def clients(url):
        return Tenants(behind, f"memory:{url.url.partition(':')[2]}")

    stores._opener = opener
    try:
        yield Spaces("behind:", lambda url, place: f"{url}{place}", exact=True)
    finally:
        stores._opener = known
        behind.close()


WHOLE = "it compares whole records: HTTP leaves out the policies of retries and keys, and how long a result is kept"
JSON = "it uses bytes that are no JSON, or codecs that the service does not know"
CHANCE = "it draws lots itself: over HTTP the service does"
READERS = "readers hold back everybody's log: they are registered at the store"

NOT_OVER_HTTP = {
    "a_claim_gives_token_deadline_and_attempt": WHOLE,
    "a_completion_of_one_does_what_it_does_among_others": WHOLE,
    "a_hint_comes_when_a_job_has_ended": "it waits for a hint of a clock that was moved",
    "a_message_comes_back_as_it_was_sent": JSON,
    "a_payload_of_the_full_size_is_kept": JSON,
    "a_result_comes_back_as_it_was_given": JSON,
    "a_result_in_a_blob_is_named_when_it_is_forgotten": "a blob store is the service's own, not its client's",
    "a_result_is_kept_for_its_ttl_and_then_gone": JSON,
    "a_worker_lives_until_its_last_beat_is_over": "the service keeps no list of workers",
    "an_enqueue_of_one_does_what_it_does_among_others": WHOLE,
    "an_error_in_an_event_is_short": "the service cuts errors as a worker does, before the store has them",
    "an_offset_that_is_none_is_refused": READERS,
    "each_job_of_a_batch_is_taken_as_it_was_sent": WHOLE,
    "errors_keep_type_message_and_traceback_of_each_attempt": "a claim does not tell earlier errors",
    "jobs_that_come_alone_and_together_stand_in_one_line": "it holds, but takes 20 s of requests one by one",
    "readers_register_by_name_and_never_move_back": READERS,
    "the_clock_can_be_shifted_only_where_that_was_asked_for": "a client moves no clock",
    "the_delay_follows_the_policy_of_the_message": CHANCE,
    "the_reaper_and_a_claim_use_the_stored_policy": CHANCE,
    "trimming_goes_on_past_a_reader_that_fell_too_far_behind": READERS,
    "trimming_waits_for_the_slowest_reader": READERS,
}
"""The checks of what HTTP has no words for, and why. With them all of TENANT-4: a token is one tenant's."""

CHECKS = [check for check in all_checks() if check.rule != "TENANT-4" and check.name not in NOT_OVER_HTTP]


def test_every_check_that_is_left_out_exists():
    assert NOT_OVER_HTTP.keys() <= {check.name for check in all_checks()}


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: f"{check.rule}-{check.name}")
def test_the_service_keeps_the_rule(check: Check, spaces: Spaces) -> None:
    try:
        asyncio.run(perform(check, spaces))
    except Skipped as reason:
        pytest.skip(str(reason))
