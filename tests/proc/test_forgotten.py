#!/usr/bin/env python3
# An option is forgotten on one of two nodes, or differs: both hear which, whoever comes first.
# timeout: 300
# waits: yes
"""Each host is a network namespace; root and the programs ip, unshare and nsenter are needed for that."""
import concurrent.futures
import functools
import itertools
import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.dirname(HERE), os.path.join(os.path.dirname(HERE), "regress")]
import cases  # noqa: E402
import jobs  # noqa: E402
import machines  # noqa: E402

BINARY = os.environ["MUSTER_BINARY"]
FIRST, SECOND = f"{machines.NETWORK}1", f"{machines.NETWORK}2"
NAME = "first-host"
PORTS = itertools.count(21000)  # of these hosts alone, which give no such port to anybody
hosts = []


def options(port, backend=None, **given):
    """Of a line for several nodes, as it should be: None leaves one out."""
    given = {"nnodes": "2", "rdzv_backend": backend, "rdzv_endpoint": f"{NAME}:{port}", "rdzv_id": "7", **given}
    return [f"--{name.replace('_', '-')}={value}" for name, value in given.items() if value is not None]


class Agent:
    def __init__(self, host, line):
        self.process = subprocess.Popen([*host.inside(), BINARY, "run", *line, "--no-python", "sleep", "1000"],
                                        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, preexec_fn=jobs.die_with_parent)
        self.said = ""

    def until(self, *words):
        """A line with all of these."""
        for line in self.process.stdout:
            self.said += line
            if all(word in line for word in words):
                return
        raise jobs.Failed(f"never {words}:\n{self.said}")

    def end(self):
        self.process.kill()
        self.process.communicate()


def play(what, lines, words, first):
    """Each says a line with its words; `first` comes first."""
    agents = [None, None]
    try:
        for turn in (first, 1 - first):
            agents[turn] = Agent(hosts[turn], lines[turn])
        for turn in (0, 1):
            agents[turn].until(*words[turn])
    except jobs.Failed as why:
        raise jobs.Failed(f"{what}, host {first} first: {why}") from None
    finally:
        for agent in agents:
            if agent:
                agent.end()


def both_orders(*scenes):
    """(what, function of a port that gives both lines, words), whoever comes first."""
    return [functools.partial(play, what, lines(next(PORTS)), words, first) for what, lines, words in scenes for first in (0, 1)]


def the_backend_is_forgotten():
    """Its node becomes static, with rank 0, and serves a store of its own. It looks at the other's, so that both hear."""
    second = [(f"--rdzv-backend={backend} on the second", lambda port, backend=backend: [options(port, backend), options(port)],
               [["host-b (pid", f"has --rdzv-backend=static (here {backend})"], words])
              for backend in ("c10d", "muster")
              for words in (["waiting", "not given here", "--rdzv-backend=static", "--node-rank=0"],
                            ["host-a (pid", f"has --rdzv-backend={backend} (here static)"])]
    return both_orders(
        *second,
        ("--rdzv-backend=c10d on the first", lambda port: [options(port), options(port, "c10d")],
         [["waiting", "has --rdzv-backend=c10d (here static)", "not given here", "--rdzv-backend=static"],
          ["waiting", "host-a (pid", "has --rdzv-backend=static (here c10d)"]]),
        ("--rdzv-backend=muster on the first", lambda port: [options(port), options(port, "muster")],
         [["waiting", "has --rdzv-backend=muster (here static)", "not given here", "--rdzv-backend=static"], ["no coordinator"]]))


def at_the_default_port():
    for backend in ("c10d", "muster"):
        for first in (0, 1):
            port = next(PORTS)
            play(f"--rdzv-endpoint of {backend}", [options(port, backend), options(port, backend, rdzv_endpoint=None)],
                 [["waiting", "join_timeout"], ["waiting", "not given here", "--rdzv-endpoint=localhost:29400"]], first)


def the_endpoint_is_forgotten():
    return [at_the_default_port, *both_orders(
        ("--rdzv-endpoint of static",
         lambda port: [options(port, node_rank="0"), options(port, rdzv_endpoint=None, node_rank="1")],
         [["waiting", "node rank 1", "(timeout)"], ["waiting", "not given here", "--rdzv-endpoint=127.0.0.1:29500"]]))]


def the_id_is_forgotten():
    return both_orders(
        ("--rdzv-id of c10d", lambda port: [options(port, "c10d"), options(port, "c10d", rdzv_id=None)],
         [["waiting", "host-b (pid", "has --rdzv-id=none (here 7)"],
          ["waiting", "host-a (pid", "has --rdzv-id=7 (here none)", "not given here", "--rdzv-id=none"]]),
        ("--rdzv-id of static", lambda port: [options(port, node_rank="0"), options(port, rdzv_id=None, node_rank="1")],
         [["waiting", "host-b (pid", "has --rdzv-id=none (here 7)"], ["waiting", "has --rdzv-id=7 (here none)"]]),
        ("--rdzv-id of muster", lambda port: [options(port, "muster"), options(port, "muster", rdzv_id=None)],
         [["waiting", "turned away: ", "(pid", "--rdzv-id=none"], ["serves the job \"7\""]]))


def the_number_of_nodes_is_forgotten():
    return both_orders(
        ("--nnodes of c10d", lambda port: [options(port, "c10d"), options(port, "c10d", nnodes=None)],
         [["waiting", "host-b (pid", "has --nnodes=1 (here 2)"], ["it runs already: node host-a", "has --nnodes=2 (here 1)"]]),
        ("--nnodes of muster", lambda port: [options(port, "muster"), options(port, "muster", nnodes=None)],
         [["waiting", "turned away: ", "(pid", "--nnodes=1:1"], ["--nnodes=1:1, the job has 2:2"]]))


CLIENT = r"""
import socket, struct, sys
text = lambda bytes: struct.pack("<Q", len(bytes)) + bytes
with socket.create_connection((sys.argv[1], int(sys.argv[2])), 30) as store:
    store.sendall(bytes.fromhex("00cef7853c") + b"\x01" + text(b"/torch.rendezvous.none") + text(b"x") + b"\x0dping")
    store.recv(4)
"""


def see_an_agent_of_pytorchs():
    port = next(PORTS)
    agent = Agent(hosts[0], options(port, "c10d"))
    try:
        while subprocess.run([*hosts[1].inside(), sys.executable, "-S", "-c", CLIENT, FIRST, str(port)], check=False,
                             stderr=subprocess.DEVNULL).returncode != 0:
            jobs.check(agent.process.poll() is None, "the agent has ended")
        agent.until("waiting", "has --rdzv-id=none (here 7)")
    finally:
        agent.end()


def an_agent_of_pytorchs_is_seen():
    """It leaves no card, but its key."""
    return [see_an_agent_of_pytorchs]


def play_all(functions):
    """Side by side, since all wait for seconds."""
    plays = [one for function in functions for one in function()]
    with concurrent.futures.ThreadPoolExecutor(len(plays)) as pool:
        for one in [pool.submit(one) for one in plays]:
            one.result()


def main():
    lack = jobs.isolate(mounts=True)
    if lack:
        print(f"SKIPPED: {lack}")
        return 77
    try:
        with machines.Hub() as hub, tempfile.NamedTemporaryFile("w") as names:
            names.write(f"127.0.0.1 localhost\n{FIRST} {NAME}\n{SECOND} second-host\n")
            names.flush()
            jobs.bind_mount(names.name, "/etc/hosts")
            hosts.extend((hub.add("first", FIRST, "host-a"), hub.add("second", SECOND, "host-b")))
            play_all(cases.chosen([the_backend_is_forgotten, the_endpoint_is_forgotten, the_id_is_forgotten,
                                   the_number_of_nodes_is_forgotten, an_agent_of_pytorchs_is_seen]))
    except jobs.Skip as why:
        print(f"SKIPPED: {why}")
        return 77
    return 0


if __name__ == "__main__":
    sys.exit(main())
