#!/usr/bin/env python3
# The other node's agent is killed, or stopped: reports and lines about waiting name it.
# timeout: 120
# waits: yes
"""Two agents on loopback."""
import concurrent.futures
import os
import signal
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.dirname(HERE), os.path.join(os.path.dirname(HERE), "regress")]
import cases  # noqa: E402
import jobs  # noqa: E402

BINARY = os.environ["MUSTER_BINARY"]
# The worker says its pid, and fails when the file is there.
WORKER = "echo begins $$$$; while [ ! -e FAIL ]; do sleep 0.05; done; exit 3"


class Agent:
    def __init__(self, backend, restarts, rank, port, fail):
        meet = (["--master-addr=127.0.0.1", f"--master-port={port}"] if backend == "static" else
                [f"--rdzv-backend={backend}", f"--rdzv-endpoint=127.0.0.1:{port}"])
        self.process = subprocess.Popen([BINARY, "run", "--nnodes=2", f"--max-restarts={restarts}", f"--node-rank={rank}", *meet, "--no-python",
                                         "sh", "-c", WORKER.replace("FAIL", fail)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                        text=True, preexec_fn=jobs.die_with_parent)
        self.said = ""

    def until(self, words):
        for line in self.process.stdout:
            self.said += line
            if words in line:
                return line
        raise jobs.Failed(f"never '{words}':\n{self.said}")

    def end(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()


def play(backend, restarts, test):
    """test(agents, their workers' pids, path of the file by which workers fail)"""
    with tempfile.TemporaryDirectory() as folder:
        port, agents = jobs.free_port(), []
        try:
            agents.append(Agent(backend, restarts, 0, port, os.path.join(folder, "0")))
            agents.append(Agent(backend, restarts, 1, port, os.path.join(folder, "1")))
            workers = [int(agent.until("begins").split()[-1]) for agent in agents]
            test(agents, workers, lambda rank: open(os.path.join(folder, str(rank)), "w", encoding="ascii").close())
        finally:
            for agent in agents:
                agent.end()


def a_killed_agent_of_a_static_job_is_named():
    """Its workers die with it, and those of the other node fail because of that."""
    def second(agents, _, fail):
        agents[1].process.kill()
        agents[0].until(f"(pid {agents[1].process.pid}), has gone before it was done")
        fail(0)
        agents[0].until("note      : node rank 1, ")

    def host(agents, _, fail):
        agents[0].process.kill()
        agents[1].until("node rank 0, which hosts the store at 127.0.0.1:")
        fail(1)
        agents[1].until("note      : node rank 0, which hosts the store at 127.0.0.1:")

    play("static", 0, second)
    play("static", 0, host)


def who_is_stopped_is_waited_for_by_name():
    """Within seconds after a worker has failed, and the other agent does not come to the next attempt."""
    def stopped(agents, workers, _):
        pid = agents[1].process.pid
        os.kill(pid, signal.SIGSTOP)
        os.kill(workers[0], signal.SIGKILL)
        line = agents[0].until("still waiting")
        jobs.check((f"_{pid}_" in line or f"(pid {pid})" in line) and "it has waited since" in line, line)

    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        for one in [pool.submit(play, backend, 1, stopped) for backend in ("static", "c10d", "muster")]:
            one.result()


if __name__ == "__main__":
    lack = jobs.isolate()
    if lack:
        print(f"SKIPPED: {lack}")
        sys.exit(77)
    cases.run([a_killed_agent_of_a_static_job_is_named, who_is_stopped_is_waited_for_by_name])
