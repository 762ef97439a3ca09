"""Waiting until nobody else uses the processors: only then does a sample count."""

import time

QUIET_SHARE = 0.1  # of the processors, used by others


def busy_share(interval_s):
    """The part of all processors' time that somebody used during the interval."""

    def read():
        with open("/proc/stat", encoding="ascii") as text:
            ticks = [int(word) for word in text.readline().split()[1:9]]
        return ticks[3] + ticks[4], sum(ticks)

    idle, total = read()
    time.sleep(interval_s)
    idle_then, total_then = read()
    return 1 - (idle_then - idle) / max(1, total_then - total)


def wait(patience_s):
    """True as soon as the machine is quiet; False when it was not within that time."""
    deadline = time.monotonic() + patience_s
    while busy_share(0.2) > QUIET_SHARE:
        if time.monotonic() > deadline:
            return False
    return True
