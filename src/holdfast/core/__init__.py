"""The rules, without I/O: no clock is read here, no file, no socket. Time comes in as an argument."""
