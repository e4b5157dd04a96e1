"""`holdfast demo`: the queue at work, with real processes that really die, and a count at the end."""
