"""What holds for all tests."""

import signal

# A job that a script starts in the background ignores Ctrl-C, and so would every process that a test wants to stop.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
