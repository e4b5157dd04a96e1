"""Jobs that wait for each other."""
