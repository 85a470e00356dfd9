"""`python -m volplane` is the command."""

import os
import signal

if "VOLPLANE_LIFELINE" in os.environ:
    # A role that is kept by another process may be told to stop before it can hear it: that waits until it
    # can, because it may have to take down what an earlier life has left.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})

from volplane.cli import main

main()
