"""The rules, without I/O: nothing here reads a clock, a file or a socket. The time is an argument."""
