import sys

import pytest

from holdfast.cli.loading import load_function, load_jobs
from holdfast.core.errors import InvalidOption


@pytest.fixture
def module(place, monkeypatch):
    """Write modules that can be imported, and are forgotten afterwards."""
    monkeypatch.syspath_prepend(place)
    before = set(sys.modules)

    def write(path: str, text: str) -> None:
        file = place / path
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)

    yield write
    for name in set(sys.modules) - before:
        del sys.modules[name]


ONE = "from holdfast import job\n@job\ndef {name}() -> int: return 1\n"


def names(modules):
    return sorted(definition.name for definition in load_jobs(modules))


def test_the_jobs_of_several_modules_are_loaded_once_each(module):
    module("shop_a.py", ONE.format(name="one"))
    module("shop_b.py", "from shop_a import one\n" + ONE.format(name="two"))
    assert names(["shop_a"]) == ["one"]
    assert names(["shop_b"]) == ["one", "two"]
    assert names(["shop_a", "shop_b", "shop_a"]) == ["one", "two"]


def test_a_package_includes_the_modules_that_it_imports(module):
    module("shop_p/__init__.py", "from shop_p import mail\n")
    module("shop_p/mail.py", ONE.format(name="mail"))
    module("shop_p/unused.py", ONE.format(name="unused"))
    assert names(["shop_p"]) == ["mail"]
    assert names(["shop_p.unused"]) == ["unused"]


@pytest.mark.parametrize(
    "name, text, reason",
    [
        ("shop_none", None, "there is no module 'shop_none' in "),
        ("shop_none.jobs", None, "there is no module 'shop_none.jobs' in "),
        ("shop_empty", "", "has no jobs; put @job on a function"),
        ("shop_import", "\nimport nothing_like_it\n", r"No module named 'nothing_like_it' \(.*shop_import.py:2\)"),
        ("shop_raises", "def f():\n  return 1 / 0\nf()", r"ZeroDivisionError: division by zero \(.*shop_raises.py:2\)"),
        ("shop_syntax", "\ndef f(:\n", r"SyntaxError: .* \(.*shop_syntax.py:2\)"),
        ("shop/jobs.py", None, "is a file; name the module: shop.jobs"),
        ("shop:send", None, "names a function; name the module alone: shop"),
    ],
)
def test_a_module_that_cannot_be_loaded_is_refused_with_the_line(module, name, text, reason):
    if text is not None:
        module(f"{name}.py", text)
    with pytest.raises(InvalidOption, match=reason):
        load_jobs([name])


def test_a_handler_is_a_function_in_a_module(module):
    module("shop_h.py", "class A:\n  @staticmethod\n  def f(payload): return payload\nx = 3\n")
    assert load_function("shop_h:A.f", "handler")(1) == 1
    for wrong in ("shop_h", "shop_h:", ":f", "shop_h:x", "shop_h:A.nothing", "shop_h:missing"):
        with pytest.raises(InvalidOption, match="handler: "):
            load_function(wrong, "handler")
