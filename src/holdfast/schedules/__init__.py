"""Jobs by the clock: ticks (when), schedules (how they are stored, as jobs)."""
