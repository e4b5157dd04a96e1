"""Planted bugs: each breaks a rule of the contract, and the conformance suite must notice.

A suite is worth what it catches. Every mutant below is a small change to the rules or to one store, in Python, SQL or
Lua, made while the suite runs and undone afterwards; `python -m tests.mutants` plants them one by one and
shows which check caught which. One that survives is a check that is missing.
"""

from tests.mutants import (
    acting,
    budgets,
    enqueue,
    explaining,
    fdb_keys,
    file_handoff,
    lasting,
    lists,
    lua_claims,
    lua_endings,
    lua_enqueue,
    lua_lasting,
    lua_single,
    numbers,
    pg_claims,
    pg_endings,
    pg_enqueue,
    pg_handoff,
    pg_log,
    pg_single,
    rules,
    sqlite,
    turns,
)
from tests.mutants.planting import Bug, Mutant, mutants
from tests.mutants.trial import Trial, baseline, scratch, trial

__all__ = ["Bug", "Mutant", "Trial", "baseline", "mutants", "scratch", "trial"]

del acting, budgets, enqueue, explaining, fdb_keys, file_handoff, lasting, lists, lua_claims, lua_endings, lua_enqueue
del lua_lasting, lua_single, numbers
del pg_claims, pg_endings, pg_enqueue, pg_log, pg_single, pg_handoff, rules, sqlite, turns
