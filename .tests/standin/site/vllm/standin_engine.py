"""The stand-in's engine process. Like vLLM's, it survives a server that was killed with SIGKILL."""

import ctypes
import signal
import time

PR_SET_NAME = 15
# The real one stays for ever; this one ends, so that a test cannot leave it on the machine.
LIFE_S = 600

if __name__ == "__main__":
    ctypes.CDLL(None).prctl(PR_SET_NAME, b"EngineCore")
    print("up", flush=True)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    time.sleep(LIFE_S)
