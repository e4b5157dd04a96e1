#!/usr/bin/env python3
"""Write the pages of docs/reference that are made from code. `--check` writes nothing and fails where they differ."""

from __future__ import annotations

import inspect
import os
import re
import sys
from collections.abc import Iterator
from enum import Enum
from functools import cached_property
from pathlib import Path
from typing import Any

from metrics_page import metrics_page
from settings_page import settings_page

REFERENCE = Path(__file__).parents[1] / "docs" / "reference"
RULE = re.compile(r"\s*\[[A-Z]+-\d[^\]]*\]")
"""The tags of rules, which mean something beside the code."""
PROPERTIES = (property, cached_property)
MEMBERS = (*PROPERTIES, classmethod, staticmethod)
SUBJECTS = {
    "Define jobs": ["job", "JobDefinition", "Message", "RetryPolicy", "current_job", "Permanent", "RetryLater"],
    "Enqueue, look up, act": [
        "Queue",
        "Ticket",
        "JobRecord",
        "JobState",
        "Event",
        "Schedule",
        "BlobRef",
        "Capabilities",
    ],
    "Flows": ["Flow", "FlowRecord"],
    "Work": ["Worker"],
}


def main() -> None:
    """Write the pages, or compare them."""
    os.environ["COLUMNS"], os.environ["NO_COLOR"] = "100", "1"
    stale: list[str] = []
    pages = {
        "python.md": python_page(),
        "cli.md": cli_page(),
        "settings.md": settings_page(),
        "metrics.md": metrics_page(),
    }
    for name, text in pages.items():
        path = REFERENCE / name
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            stale.append(name)
            if "--check" not in sys.argv:
                path.write_text(text, encoding="utf-8")
    if stale and "--check" in sys.argv:
        sys.exit(f"{', '.join(stale)} no longer match the code; run: python scripts/make_reference.py")


def python_page() -> str:
    """The public names, by subject; the errors last."""
    import holdfast

    lines = [
        "# The Python API",
        "",
        "Made from the code by `scripts/make_reference.py`. `from holdfast import ...` has these names;",
        "`holdfast.blocking.Queue` has the methods of `Queue` without `await`.",
    ]
    named = {name for names in SUBJECTS.values() for name in names}
    subjects = {**SUBJECTS, "Errors": [name for name in holdfast.__all__ if name not in named]}
    for subject, names in subjects.items():
        lines += ["", f"## {subject}"]
        for name in names:
            lines += ["", *described(name, getattr(holdfast, name), short=subject == "Errors")]
    return "\n".join(lines) + "\n"


def described(name: str, thing: Any, *, short: bool) -> Iterator[str]:
    """A name with what it is for; a class also with its public attributes."""
    yield f"### `{name}`"
    yield ""
    if inspect.isclass(thing):
        if not short and not issubclass(thing, Enum):
            yield from ["```python", signature(name, thing), "```", ""]
        yield doc(thing)
        if issubclass(thing, Enum):
            yield f"\n{', '.join(f'`{member.value}`' for member in thing)}"
        elif not short:
            yield from members(thing)
    else:
        yield from ["```python", signature(name, thing), "```", "", doc(thing)]


def members(thing: type) -> Iterator[str]:
    """The public methods and properties of a class, its own and what it inherits from ours."""
    found = {
        name: member
        for owner in reversed(thing.__mro__)
        if owner.__module__.startswith("holdfast")
        for name, member in vars(owner).items()
        if not name.startswith("_") and (callable(member) or isinstance(member, MEMBERS))
    }
    rows = []
    for name, member in sorted(found.items()):
        if isinstance(member, PROPERTIES):
            rows.append(f"- **`.{name}`** {doc(member)}".rstrip())
        elif not inspect.isclass(member):
            awaited = "await " if inspect.iscoroutinefunction(member) else ""
            rows.append(f"- **`{awaited}{signature('.' + name, getattr(thing, name))}`** {doc(member)}")
    if rows:
        yield ""
        yield from rows


def signature(name: str, thing: Any) -> str:
    """As one would call it, on one line, without types of the answer that say nothing."""
    try:
        found = inspect.signature(thing)
    except (TypeError, ValueError):
        return name
    parameters = [
        one.replace(annotation=Plain(one.annotation)) for one in found.parameters.values() if one.name != "self"
    ]
    answer = found.return_annotation if name.startswith(".") else found.empty
    text = str(found.replace(parameters=parameters, return_annotation=Plain(answer)))
    return f"{name}{re.sub(r'(holdfast|datetime)[.]([a-z_]+[.])*', '', text)}"


class Plain:
    """A type as the source has it, without quotes; nothing where there is none."""

    def __new__(cls, annotation: Any) -> Any:
        return super().__new__(cls) if isinstance(annotation, str) else annotation

    def __init__(self, annotation: str) -> None:
        self._text = annotation

    def __repr__(self) -> str:
        return self._text


def doc(thing: Any) -> str:
    """The docstring as one paragraph each, without tags."""
    return RULE.sub("", " ".join(inspect.getdoc(thing).split())) if inspect.getdoc(thing) else ""


def cli_page() -> str:
    """Each command with its help."""
    from click import Context, Group

    from holdfast.cli.app import command as root

    lines = ["# The command line", "", "Made from the code by `scripts/make_reference.py`.", ""]
    lines.append("Exit codes: 0 done, 1 failed, 2 wrong usage. `HOLDFAST_STORE` and `HOLDFAST_TENANT` stand in for")
    lines.append("`--store` and `--tenant`.")

    def visit(command: Any, parent: Context | None, name: str) -> None:
        context = Context(command, info_name=name, parent=parent, terminal_width=100, max_content_width=100)
        if isinstance(command, Group) or hasattr(command, "list_commands"):
            for one in command.list_commands(context):
                visit(command.get_command(context, one), context, one)
            return
        lines.extend(["", f"## `{context.command_path}`", "", "```text", command.get_help(context).rstrip(), "```"])

    visit(root, None, "holdfast")
    return "\n".join(line.rstrip() for line in "\n".join(lines).split("\n")) + "\n"


if __name__ == "__main__":
    main()
