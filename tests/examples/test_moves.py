#!/usr/bin/env python3
# A job of examples/gpt with full sharding over hosts that join, are lost and leave: its state goes from memory to memory, and no file
# is read. Hosts are agents of this machine whose ranks share no memory (MUSTER_HOST_ID).
# computes: yes
import glob
import os
import random
import re
import signal
import socket
import tempfile
import time

import kills
import trainers

CHANCE = random.Random(1)
FOUND = r"^from step (\d+), which was in memory: "


def node(port, host, ranks, folder, *arguments):
    return ["env", f"MUSTER_HOST_ID={host}", trainers.MUSTER, "run", trainers.address("abc".index(host)), "--nnodes=1:4",
            f"--nproc-per-node={ranks}", "--max-restarts=9", "--restart-backoff=0", "--rdzv-backend=c10d",
            f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-conf=last_call_timeout=1",
            "--preempt-signal=SIGUSR1", "--no-python", trainers.program("gpt"), *kills.GPT, "--steps=1000000", "--report-every=1",
            "--sharding=fsdp", f"--snapshot={folder}", *arguments]


def link_of(path):
    try:
        return os.readlink(path)
    except FileNotFoundError:  # it has been closed meanwhile
        return ""


class Job:
    """The host that stays, and with it those that come and go."""

    def __init__(self, *arguments):
        self.held, self.folder, self.arguments = socket.socket(), tempfile.TemporaryDirectory(), arguments
        self.held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a node may listen there, and the kernel gives it to nobody else
        self.held.bind(("", 0))

    def __enter__(self):
        self.stays = self.host("a", 2).__enter__()
        self.train()
        return self

    def __exit__(self, *problem):
        self.stays.__exit__(*problem)
        self.held.close()
        self.folder.cleanup()

    def host(self, name, ranks):
        return trainers.Launcher(node(self.held.getsockname()[1], name, ranks, self.folder.name, *self.arguments))

    def train(self):
        step = int(self.stays.wait_for(r"^step (\d+)/")[1])
        self.stays.wait_for(rf"^step {step + 20}/")

    def goes_on(self, ranks, is_copied=False):
        """Another world of so many ranks, at the last step that was printed or the one before it: who was killed may not have
        committed it. A copy may be older. A process of that world."""
        pid = int(self.stays.wait_for(rf"^rank 0 of {ranks}: pid (\d+)")[1])
        last = int(re.findall(r"^step (\d+)/", self.stays.text, re.MULTILINE)[-1])
        found = int(self.stays.wait_for(FOUND)[1])
        assert found >= (1 if is_copied else last - 1), (found, last, self.stays.text)
        self.train()
        return pid

    def kill_some(self, ranks):
        """A rank of each of some worlds, within the time that a start takes."""
        for _ in range(4):
            pid = int(self.stays.wait_for(rf"^rank 0 of {ranks}: pid (\d+)")[1])
            time.sleep(CHANCE.random() * 0.2)  # any moment will do
            os.kill(pid, signal.SIGKILL)

    def check_held(self, count):
        """The agent that stays holds so much memory: that of other worlds has gone."""
        held = [link for link in map(link_of, glob.glob(f"/proc/{self.stays.process.pid}/fd/*")) if "muster-state" in link]
        assert len(held) == count, (held, self.stays.text)

    def stop(self):
        self.stays.process.send_signal(signal.SIGUSR1)
        self.stays.wait_for(r"^asked to stop: stopping after step (\d+)")
        self.stays.finish()
        assert len(re.findall("^from ", self.stays.text, re.MULTILINE)) == 1 + len(re.findall(FOUND, self.stays.text, re.MULTILINE))


def hosts_that_join_get_their_part():
    """Of two ranks, of one rank, and with three ranks where there were two; somebody is killed when they have come, or while the state
    moves. No step that all had committed is made again."""
    with Job() as job:
        with job.host("b", 2):
            job.goes_on(4)
            with job.host("c", 1):
                job.kill_some(5)
                job.goes_on(5)
                with job.host("b", 1):  # another agent of a host: then hosts of 2, 3 and 1 ranks
                    job.goes_on(6)
                    job.check_held(2)  # of each of its ranks: hosts of different sizes share nothing
                    job.stop()


def hosts_that_are_lost_leave_copies():
    """Killed or stopped, their memory goes. Steps are made again since the last copy that was whole: a few."""
    with Job("--copies=1") as job:
        with job.host("b", 2) as second:
            job.goes_on(4)
            with job.host("c", 1) as third:
                job.goes_on(5)
                third.process.kill()
                job.goes_on(4, is_copied=True)
            second.process.terminate()
            job.goes_on(2, is_copied=True)
            job.check_held(1)
        with job.host("b", 2):
            os.kill(job.goes_on(4), signal.SIGKILL)
            job.goes_on(4)
            job.stop()
        assert len(re.findall("the committed state of a host is gone: this is step", job.stays.text)) == 2, job.stays.text


def a_host_that_leaves_hands_its_part_over():
    """Only the first step of a world is copied as a matter of course. A host that is told to end has the last one copied first."""
    with Job("--copies=1000000000") as job:
        with job.host("b", 2) as second:
            job.goes_on(4)
            second.process.terminate()
            job.goes_on(2)
            second.finish()
        with job.host("b", 2), job.host("c", 2) as third:
            job.goes_on(6)
            third.process.terminate()
            job.goes_on(4)
            third.finish()
            job.check_held(3)  # the host's, and a copy of each of its ranks
            job.stop()
        assert len(re.findall("the committed state of a host is gone: this is step", job.stays.text)) == 2, job.stays.text


trainers.main([hosts_that_join_get_their_part, hosts_that_are_lost_leave_copies, a_host_that_leaves_hands_its_part_over])
