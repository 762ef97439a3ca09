#!/usr/bin/env python3
# Memory that workers leave to their launcher: the next attempt finds it, another node does not, and nothing is left of it.
import os
import re
import signal
import sys
import time

from preempted import MUSTER, PATIENCE_S, job

WORKER = [os.path.join(os.path.dirname(MUSTER), "bench", "held_worker")]


def is_listened_on(name):
    with open("/proc/net/unix", encoding="ascii", errors="replace") as text:
        return any(line.rstrip().endswith("@" + name) for line in text)


def sockets_of(text):
    return set(re.findall(r"muster-held-[0-9a-f]{32}", text))


def held_in_memory():
    return {name for name in os.listdir("/dev/shm") if "muster-state" in name or "muster-held" in name}


def the_next_attempt_finds_it(backend, nodes, *victim):
    """In each of two restarts, on every node, whatever the backend and whoever dies; what another node holds is not found."""
    options = ["--max-restarts=9", "--restart-backoff=0"]
    with job(backend, nodes, ["--no-python", *WORKER, "3", *victim], options) as agents:
        for agent in agents:
            agent.end(0)
        text = "".join(agent.text for agent in agents)
        ranks = range(2 * nodes)
        for rank in ranks:
            for attempt in (0, 1):
                assert f"rank {rank} found attempt {attempt}\n" in text, text
            assert f"rank {rank} of muster-held-" in text, text
        assert "found attempt -1" not in text and "found what" not in text, text
        for agent in agents:
            assert agent.text.count("holding memory of this node's workers") == 1, agent.text
            assert agent.text.count("2 pieces of memory, 6 MiB, of earlier workers are held") >= 2, agent.text
        names = sockets_of(text)
        assert len(names) == nodes, f"sockets {names}"
        assert not any(is_listened_on(name) for name in names), names
    assert held_in_memory() == set()


def it_goes_with_a_launcher_that_is_killed():
    command = ["--no-python", "sh", "-c", "echo up $MUSTER_HELD_SOCKET; exec sleep 1000"]
    with job("standalone", 1, command, per_node=1) as (agent,):
        agent.wait_for("up muster-held-")
        (name,) = sockets_of(agent.text)
        assert is_listened_on(name)
        agent.process.send_signal(signal.SIGKILL)
        agent.end(-signal.SIGKILL)
        until_s = time.monotonic() + PATIENCE_S
        while is_listened_on(name):
            assert time.monotonic() < until_s, "its socket is still there"


def a_job_within_a_job_has_its_own():
    inner = f"{MUSTER} run --standalone --nproc-per-node=1 --log-dir=/dev/null --no-python sh -c 'echo inner $MUSTER_HELD_SOCKET'"
    with job("standalone", 1, ["--no-python", "sh", "-c", f"echo outer $MUSTER_HELD_SOCKET; {inner}"], per_node=1) as (agent,):
        agent.end(0)
        names = sockets_of(agent.text)
        assert len(names) == 2, agent.text


def main():
    os.environ.update(MUSTER_HELD_SOCKET="muster-held-" + 32 * "0", LOGLEVEL="INFO")
    for backend, nodes in (("standalone", 1), ("muster", 2), ("c10d", 2)):
        the_next_attempt_finds_it(backend, nodes)
        the_next_attempt_finds_it(backend, nodes, "guardian")
    it_goes_with_a_launcher_that_is_killed()
    a_job_within_a_job_has_its_own()
    return 0


if __name__ == "__main__":
    sys.exit(main())
