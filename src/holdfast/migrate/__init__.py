"""Moving a tenant from one store to another: what waits there, whole, and no job twice. (docs/adr/0012)

`mover` has the order of the steps, `steps` what is done to each queue, `copies` what of a job moves and how both sides
are compared, `notes` what a mover that was killed must be able to know, `forget` how
a move ends that cannot be finished.
"""

from holdfast.migrate.forget import Forgotten, forget
from holdfast.migrate.moved import Moved
from holdfast.migrate.mover import move, preview
from holdfast.migrate.plan import MovePlan

__all__ = ["Forgotten", "MovePlan", "Moved", "forget", "move", "preview"]
