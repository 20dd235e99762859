"""The first process of a sandbox and of each of its nodes: it collects dead children, and its end ends all the others.

It waits for a line on its standard input before it settles. The starter writes that line once it has put this process
on record, so a starter that is killed in between leaves nothing behind.
"""

import signal
import sys

signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel then discards dead children by itself
signal.signal(signal.SIGINT, signal.SIG_IGN)
if sys.stdin.readline() != "go\n":
    sys.exit(1)
while True:
    signal.pause()
