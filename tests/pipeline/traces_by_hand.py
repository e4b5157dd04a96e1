"""Events of a job, made by hand."""

from holdfast.core.events import Event, error_data


def _event(kind, job_id, tenant, at, attempt, token, data=None):
    return Event(kind, tenant, "q", job_id, "send", at, attempt, token, "w" if token else "", data or {}, "0")


def born(job_id, tenant, at):
    return _event("enqueued", job_id, tenant, at, 0, 0, {"priority": 5, "max_attempts": 1, "visible_at": at})


def claimed(job_id, tenant, at, token):
    return _event("claimed", job_id, tenant, at, 1, token, {"visible_at": at - 1000, "deadline": at + 30_000})


def completed(job_id, tenant, at, token):
    return _event("completed", job_id, tenant, at, 1, token)


def failed(job_id, tenant, at, token, error):
    data = {"reason": "max_attempts", "error": error_data(error)}
    return _event("failed", job_id, tenant, at, 1, token, data)
