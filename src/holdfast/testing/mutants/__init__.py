"""Planted bugs: each breaks a rule of the contract, and the conformance suite must notice.

A suite is worth what it catches. Every mutant below is a small change to the rules or to one store, in Python, SQL or
Lua, made while the suite runs and undone afterwards; `python -m holdfast.testing.mutants` plants them one by one and
shows which check caught which. One that survives is a check that is missing.
"""

from holdfast.testing.mutants import (
    budgets,
    enqueue,
    file_offers,
    lasting,
    lua_claims,
    lua_endings,
    lua_enqueue,
    lua_lasting,
    lua_lone,
    numbers,
    pg_claims,
    pg_endings,
    pg_enqueue,
    pg_log,
    pg_lone,
    pg_offers,
    rules,
    sqlite,
    turns,
)
from holdfast.testing.mutants.planting import Bug, Mutant, mutants
from holdfast.testing.mutants.trial import Trial, baseline, scratch, trial

__all__ = ["Bug", "Mutant", "Trial", "baseline", "mutants", "scratch", "trial"]

del budgets, enqueue, file_offers, lasting, lua_claims, lua_endings, lua_enqueue, lua_lasting, lua_lone, numbers
del pg_claims, pg_endings, pg_enqueue, pg_log, pg_lone, pg_offers, rules, sqlite, turns
