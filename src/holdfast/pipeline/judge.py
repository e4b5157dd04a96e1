"""Decides which SQL may run: only a SELECT over the lake's tables, or a condition on columns.

Spark's SQL runs programs (`TRANSFORM ... USING`), calls Java (`java_method`) and reads any file of the machine
(text.`/etc/passwd`). So the text is parsed here, every node of the tree must be of a kind on the lists below, and Spark
gets a new text, generated from the tree: Spark never sees text that was not judged. The new text is parsed and judged
again and must come out the same, which catches mistakes of the generator.

The parser here knows no functions, so each function is an `Anonymous` node with its name in Spark.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, ClassVar, NoReturn, cast

from sqlglot import exp
from sqlglot.dialects.spark import Spark
from sqlglot.errors import ParseError, SqlglotError
from sqlglot.parsers.spark import SparkParser

from holdfast.core.errors import InvalidOption
from holdfast.pipeline.lake import LAYER

REFERENCE = "docs/reference/query.md"

TABLE_FUNCTIONS = frozenset({"range"})
FUNCTIONS = frozenset(Path(__file__).with_name("functions.txt").read_text(encoding="ascii").split())
"""Functions that compute from their arguments alone. None reads a file, calls Java, or reveals the machine."""

_VALUES = (
    exp.Column, exp.Identifier, exp.Literal, exp.RawString, exp.HexString, exp.Boolean, exp.Null, exp.Star, exp.Var,
    exp.Paren, exp.Tuple, exp.Dot, exp.Bracket, exp.Slice, exp.Alias, exp.Lambda, exp.Anonymous, exp.Transform,
    exp.Case, exp.If, exp.Cast, exp.TryCast, exp.DataType, exp.DataTypeParam, exp.ColumnDef, exp.Interval, exp.Extract,
    exp.Trim, exp.CurrentDate, exp.CurrentTimestamp,
    exp.Not, exp.Neg, exp.BitwiseNot, exp.And, exp.Or, exp.Add, exp.Sub, exp.Mul, exp.Div, exp.IntDiv, exp.Mod,
    exp.DPipe, exp.BitwiseAnd, exp.BitwiseOr, exp.BitwiseXor, exp.BitwiseLeftShift, exp.BitwiseRightShift,
    exp.EQ, exp.NEQ, exp.NullSafeEQ, exp.NullSafeNEQ, exp.GT, exp.GTE, exp.LT, exp.LTE, exp.Is, exp.In, exp.Between,
    exp.Like, exp.ILike, exp.RegexpLike, exp.Escape, exp.Any, exp.All,
    exp.Distinct, exp.Filter, exp.IgnoreNulls, exp.RespectNulls, exp.WithinGroup, exp.Window, exp.WindowSpec,
    exp.Order, exp.Ordered, exp.Where,
)  # fmt: skip
_QUERIES = (
    exp.Select, exp.Union, exp.Except, exp.Intersect, exp.Subquery, exp.Values, exp.With, exp.CTE, exp.From, exp.Table,
    exp.TableAlias, exp.Join, exp.Lateral, exp.Group, exp.Cube, exp.Rollup, exp.GroupingSets, exp.Having, exp.Limit,
    exp.Offset, exp.Exists,
)  # fmt: skip
_WHAT: Mapping[type[exp.Expr], str] = {
    exp.Hint: "a hint",
    exp.QueryTransform: "TRANSFORM ... USING, which runs a program,",
    exp.Concat: r"a text beside another one (a quote inside a text is \')",
    exp.Placeholder: "a parameter",
    exp.Parameter: "a parameter",
    exp.SessionParameter: "a parameter",
}
_WORD = re.compile(r"[A-Za-z_]+\Z")

# The parser logs each statement that it does not know. Here such statements are refused with our own message.
logging.getLogger("sqlglot").setLevel(logging.ERROR)


_parsers: dict[str, Any] = cast("Any", SparkParser).FUNCTION_PARSERS


class _Parser(SparkParser):
    FUNCTIONS: ClassVar[dict[str, Any]] = {}
    # Otherwise `array(1, 2)[0]` is read as an array of 0, as in other dialects.
    ARRAY_CONSTRUCTORS: ClassVar[dict[str, Any]] = {}
    FUNCTION_PARSERS: ClassVar[dict[str, Any]] = {
        name: _parsers[name] for name in ("CAST", "TRY_CAST", "EXTRACT", "TRIM")
    }


class _Dialect(Spark):
    Parser = _Parser


_dialect = _Dialect()


def statement(sql: str) -> str:
    """A SELECT, generated from its parsed tree. Raises InvalidOption for everything else."""
    if not sql.strip(" \t\r\n;"):
        raise InvalidOption(
            "query", "it is empty; write for example: SELECT queue, count(*) FROM job_runs GROUP BY queue"
        )
    return _Judge("query", (*_VALUES, *_QUERIES)).written(sql)


def condition(sql: str) -> str:
    """A condition on columns without subqueries, generated from its parsed tree. Raises InvalidOption otherwise."""
    return _Judge("where", _VALUES).written(sql)


class _Judge:
    """Accepts only trees whose nodes are all of the allowed kinds."""

    def __init__(self, option: str, kinds: Collection[type[exp.Expr]]) -> None:
        self._option, self._kinds = option, frozenset(kinds)
        self._selects = exp.Select in self._kinds

    def written(self, sql: str) -> str:
        try:
            text = self._once(sql)
            same = self._once(text) == text
        except (SqlglotError, RecursionError) as error:
            wanted = "a SELECT" if self._selects else "a condition without ';'"
            self._refuse(f"only {wanted} is allowed, and this cannot be read as one{_place(error)}")
        if not same:
            self._refuse("it cannot be generated again exactly; write it more simply")
        return text

    def _once(self, sql: str) -> str:
        tree = self._parse(sql)
        for node in tree.walk():
            self._check(node)
        text = tree.sql(dialect=_dialect, identify=True, comments=False, normalize_functions=False)
        if "${" in text:
            self._refuse("${...} is replaced by Spark before it reads a statement; write '$' || '{' for a text")
        return text

    def _parse(self, sql: str) -> exp.Expr:
        tokens = _dialect.tokenize(sql)
        parser = _dialect.parser()
        trees = parser.parse(tokens, sql) if self._selects else parser.parse_into(exp.Condition, tokens, sql)
        found = [tree for tree in trees if tree is not None]
        if len(found) != 1:
            self._refuse(f"only one statement is allowed, and there are {len(found)}")
        if self._selects and not isinstance(found[0], exp.Query | exp.Values):
            self._refuse("only a SELECT is allowed")
        return found[0]

    def _check(self, node: exp.Expr) -> None:
        if type(node) not in self._kinds:
            if isinstance(node, exp.Query | exp.Exists):
                self._refuse("a subquery cannot be used here")
            self._refuse(f"{_WHAT.get(type(node), type(node).__name__)} cannot be used here ({REFERENCE})")
        match node:
            case exp.Table():
                self._check_table(node)
            case exp.Anonymous() if not isinstance(node.parent, exp.Table) and node.name.lower() not in FUNCTIONS:
                self._refuse(f"the function {node.name} is not allowed ({REFERENCE})")
            case exp.Dot() if not isinstance(node.expression, exp.Identifier | exp.Star):
                self._refuse(f"a function of a schema cannot be used ({REFERENCE})")
            case exp.Var() if not _WORD.match(node.name):
                self._refuse(f"{node.name!r} is not a word")
            case exp.With() if node.args.get("recursive"):
                self._refuse("WITH RECURSIVE cannot be used")
            case _:
                pass

    def _check_table(self, table: exp.Table) -> None:
        source = table.this
        if isinstance(source, exp.Anonymous) and not table.db:
            if source.name.lower() not in TABLE_FUNCTIONS:
                self._refuse(f"the table function {source.name} is not allowed ({REFERENCE})")
        elif table.db or table.catalog or not isinstance(source, exp.Identifier):
            self._refuse(f"{table.sql(dialect=_dialect, comments=False)} is not a table of the lake: {_TABLES}")
        elif table.name.lower() not in LAYER and not _in_scope(table):
            self._refuse(f"{table.name} is not a table of the lake: {_TABLES}")

    def _refuse(self, reason: str) -> NoReturn:
        raise InvalidOption(self._option, reason) from None


_TABLES = f"they are {', '.join(LAYER)}, without a schema"


def _in_scope(table: exp.Table) -> bool:
    """Whether a WITH around this table defines its name. A later part of the same WITH does not."""
    name, node = table.name.lower(), cast("exp.Expr", table)
    while (parent := node.parent) is not None:
        defined: list[exp.Expr] = []
        if isinstance(parent, exp.With):
            defined = parent.expressions[: parent.expressions.index(node)]
        elif (with_ := parent.args.get("with_")) is not None and with_ is not node:
            defined = with_.expressions
        if any(cte.alias.lower() == name for cte in defined):
            return True
        node = parent
    return False


def _place(error: Exception) -> str:
    """Where the parser stopped, if it is known."""
    if isinstance(error, ParseError) and error.errors and (line := error.errors[0].get("line")):
        return f": line {line}, column {error.errors[0].get('col')}"
    return ": it is nested too deeply" if isinstance(error, RecursionError) else ""
