"""For all tests."""

import signal

# A shell that starts a job in the background has it ignore Ctrl-C, and every process below inherits that. Tests send
# SIGINT to processes of their own, which must heed it wherever the tests were started from.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
