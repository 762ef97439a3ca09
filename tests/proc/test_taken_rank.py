#!/usr/bin/env python3
# An agent of a static job comes with a node rank that another one has: who answers stays, who does not is replaced.
# timeout: 240
# waits: yes
"""Each host is a network namespace; root and the programs ip, unshare and nsenter are needed for that."""
import os
import signal
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.dirname(HERE), os.path.join(os.path.dirname(HERE), "regress")]
import cases  # noqa: E402
import jobs  # noqa: E402
import machines  # noqa: E402

BINARY = os.environ["MUSTER_BINARY"]
PATIENCE_S = 100
hosts = {}


class Agent:
    """On a host; its worker ends when the file `go` is there."""

    def __init__(self, host, rank, port, go, master):
        command = f"echo begins; while [ ! -e {go} ]; do sleep 0.05; done; echo ends"
        self.process = subprocess.Popen(
            [*hosts[host].inside(), BINARY, "run", "--nnodes=2", f"--node-rank={rank}", f"--master-addr={master}",
             f"--master-port={port}", "--rdzv-conf=keep_alive_interval=1,keep_alive_max_attempt=2", "--no-python", "sh", "-c", command],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, preexec_fn=jobs.die_with_parent)
        self.said = ""

    def until(self, words):
        for line in self.process.stdout:
            self.said += line
            if words in line:
                return
        raise jobs.Failed(f"never '{words}':\n{self.said}")

    def expect(self, code, *words):
        self.said += self.process.communicate(timeout=PATIENCE_S)[0]
        jobs.check(self.process.returncode == code and all(word in self.said for word in words),
                   f"{self.process.returncode}, not {code}, {words}:\n{self.said}")

    def end(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.communicate()


def play(test):
    """test(start, go): start(host, rank) is an agent."""
    with tempfile.TemporaryDirectory() as folder:
        agents, port, go = [], jobs.free_port(), os.path.join(folder, "go")

        def start(host, rank, master=f"{machines.NETWORK}1"):
            agents.append(Agent(host, rank, port, go, master))
            return agents[-1]

        try:
            test(start, lambda: open(go, "w", encoding="ascii").close())
        finally:
            for agent in agents:
                agent.end()


def who_works_is_not_disturbed():
    def test(start, go):
        old = [start("a", 0), start("b", 1)]
        for agent in old:
            agent.until("begins")
        start("c", 1).expect(1, "node rank 1 of this job is host-b (pid", "this node, host-c (pid", "--master-port of its own")
        go()
        for agent in old:
            agent.expect(0, "ends")
            jobs.check(agent.said.count("begins") == 1, f"started again:\n{agent.said}")

    play(test)


def who_vanishes_without_a_word_is_replaced():
    def test(start, go):
        old = [start("a", 0), start("b", 1)]
        for agent in old:
            agent.until("begins")
        hub.cut_off("b")
        newcomer = start("c", 1)
        newcomer.until("begins")
        old[0].until("begins")
        go()
        for agent in (old[0], newcomer):
            agent.expect(0, "ends")

    try:
        play(test)
    finally:
        hub.heal("b")


def who_is_replaced_while_it_is_stopped_ends():
    def test(start, go):
        old = [start("a", 0), start("b", 1)]
        for agent in old:
            agent.until("begins")
        agent_pid = old[1].process.pid  # nsenter has become the agent
        os.kill(agent_pid, signal.SIGSTOP)
        newcomer = start("c", 1)
        newcomer.until("begins")
        os.kill(agent_pid, signal.SIGCONT)
        old[1].expect(1, "another agent has taken its place")
        go()
        for agent in (old[0], newcomer):
            agent.expect(0, "ends")

    play(test)


def a_second_rank_0_hears_where_the_name_leads():
    def test(start, _):
        first, second = start("a", 0), start("b", 0)
        second.until(f"({machines.NETWORK}1) is no address of this machine")
        first.until("still waiting")
        jobs.check("no address" not in first.said, first.said)

    play(test)


def main():
    global hub
    lack = jobs.isolate()
    if lack:
        print(f"SKIPPED: {lack}")
        return 77
    try:
        with machines.Hub() as hub:
            for number, name in enumerate("abc", 1):
                hosts[name] = hub.add(name, f"{machines.NETWORK}{number}", f"host-{name}")
            cases.run([who_works_is_not_disturbed, who_vanishes_without_a_word_is_replaced, who_is_replaced_while_it_is_stopped_ends,
                       a_second_rank_0_hears_where_the_name_leads])
    except jobs.Skip as why:
        print(f"SKIPPED: {why}")
        return 77
    return 0


if __name__ == "__main__":
    sys.exit(main())
