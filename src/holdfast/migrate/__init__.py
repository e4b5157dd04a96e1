"""Moves the waiting jobs of a tenant from one store to another; none is lost or runs twice. (docs/adr/0012)

`mover` has the order of a move, `checks` its preconditions, `steps` what each step does to a queue, `copies` how a job
is copied and compared, `move_log` what survives a killed mover, `preview` what a move would do. `forget` gives up one
that cannot be finished.
"""

from holdfast.migrate.forget import Forgotten, forget
from holdfast.migrate.moved import Moved
from holdfast.migrate.mover import move
from holdfast.migrate.plan import MovePlan
from holdfast.migrate.preview import preview

__all__ = ["Forgotten", "MovePlan", "Moved", "forget", "move", "preview"]
