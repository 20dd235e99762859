"""The first process of a sandbox and of each node: it reaps dead children, and its end ends all other processes.

It first waits for a line on its standard input. The starter writes that line after it has recorded this process, so that a starter which
is killed before leaves nothing behind.
"""

import signal
import sys

signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel then reaps dead children
signal.signal(signal.SIGINT, signal.SIG_IGN)
if sys.stdin.readline() != "go\n":
    sys.exit(1)
while True:
    signal.pause()
