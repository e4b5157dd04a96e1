"""Jobs by the clock: ticks (when they are due), schedules (how they are stored: as jobs)."""
