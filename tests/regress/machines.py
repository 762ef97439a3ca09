"""Machines on one: a network namespace for each, behind a bridge. They can be cut off without a word, and lose power."""

import os
import shutil
import signal
import subprocess

import jobs

HERE = "10.77.0.254"  # this process's own address on the bridge


def ip(*words):
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise jobs.Skip(f"ip {' '.join(words)}: {done.stderr.strip()}")


class Hub:
    """The bridge; jobs.isolate() first."""

    def __init__(self, scratch):
        for tool in ("ip", "nsenter", "unshare"):
            if shutil.which(tool) is None:
                raise jobs.Skip(f"no {tool}")
        self.scratch = scratch
        self.holders = {}
        ip("link", "add", "hub", "type", "bridge")
        ip("addr", "add", f"{HERE}/24", "dev", "hub")
        ip("link", "set", "hub", "up")

    def add(self, name, address):
        started = os.path.join(self.scratch.root, f"machine-{name}")
        script = f'ip link set lo up; touch "{started}"; exec cat'
        holder = self.scratch.start(f"machine-{name}", ["unshare", "-n", "sh", "-c", script], stdin=subprocess.PIPE)
        while not os.path.exists(started):
            jobs.check(holder.wait(0.005) is None, f"no machine\n{holder.tail()}")
        self.holders[name] = holder
        ip("link", "add", f"to-{name}", "type", "veth", "peer", "name", "eth0", "netns", str(holder.pid))
        for words in (["addr", "add", f"{address}/24", "dev", "eth0"], ["link", "set", "eth0", "up"]):
            subprocess.run([*self.inside(name), "ip", *words], check=True)
        ip("link", "set", f"to-{name}", "master", "hub", "up")

    def inside(self, name):
        """What a command that is to run on this machine begins with."""
        return ["nsenter", f"--net=/proc/{self.holders[name].pid}/ns/net"]

    def cut_off(self, name):
        ip("link", "set", f"to-{name}", "nomaster")

    def heal(self, name):
        ip("link", "set", f"to-{name}", "master", "hub")

    def lose_power(self, name, agent):
        """The machine and the agent on it are gone; nobody is told."""
        self.cut_off(name)
        agent.signal(signal.SIGKILL)
        agent.expect(jobs.SOON_S, -signal.SIGKILL)

    def close(self):
        for holder in self.holders.values():
            holder.popen.stdin.close()
            holder.expect(jobs.SOON_S, 0)
        for link in (*(f"to-{name}" for name in self.holders), "hub"):  # the kernel takes its time with those of a network that ends
            subprocess.run(["ip", "link", "del", link], stderr=subprocess.DEVNULL, check=False)
