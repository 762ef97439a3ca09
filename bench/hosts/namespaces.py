"""Hosts on one machine: network namespaces with names of their own, joined by virtual cables to a bridge.

Nothing has a name outside of this process's own namespace: a host lasts as long as the process that holds it, which
dies with this one. So nothing is left behind, however the benchmark ends.
"""

import ctypes
import os
import signal
import subprocess

BRIDGE = "switch"
INTERFACE = "eth0"
PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


class Refused(Exception):
    """This machine gives no such hosts; the text says why."""


def run(*words):
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Refused(f"{' '.join(words)}: {done.stderr.strip() or done.returncode}")


def die_with_parent():
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class Host:
    def __init__(self, index):
        self.index = index
        self.name = f"host{index}"
        self.address = f"10.97.0.{index + 1}"
        script = f"hostname {self.name} && ip link set lo up && echo ready && exec sleep infinity"
        self.holder = subprocess.Popen(
            ["unshare", "--net", "--uts", "--", "sh", "-c", script],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            preexec_fn=die_with_parent,
        )
        if self.holder.stdout.readline() != "ready\n":
            raise Refused("no right to make network namespaces")

    def enter(self):
        """The beginning of a command that runs there."""
        return ["nsenter", "-t", str(self.holder.pid), "-n", "-u", "--"]

    def connect(self, rate, congestion):
        """rate: of the cable, in each direction, as tc writes it; None: as fast as the machine. congestion: TCP's
        control; None: what this machine has."""
        port = f"port{self.index}"
        run("ip", "link", "add", port, "type", "veth", "peer", "name", INTERFACE, "netns", str(self.holder.pid))
        run("ip", "link", "set", port, "master", BRIDGE, "up")
        run(*self.enter(), "ip", "address", "add", f"{self.address}/24", "dev", INTERFACE)
        run(*self.enter(), "ip", "link", "set", INTERFACE, "up")
        if congestion:
            run(*self.enter(), "ip", "route", "replace", "10.97.0.0/24", "dev", INTERFACE, "congctl", congestion)
        limit = ["root", "tbf", "rate", rate, "burst", "256kb", "latency", "20ms"] if rate else None
        if limit:
            run("tc", "qdisc", "add", "dev", port, *limit)
            run(*self.enter(), "tc", "qdisc", "add", "dev", INTERFACE, *limit)

    def end(self):
        self.holder.kill()
        self.holder.wait()
        self.holder.stdout.close()


class Hosts:
    """A context: the hosts are gone at its end. Make it in a network namespace of one's own (jobs.isolate())."""

    def __init__(self, count, rate=None, congestion=None):
        self.count, self.rate, self.congestion, self.hosts = count, rate, congestion, []

    def __enter__(self):
        try:
            run("ip", "link", "add", BRIDGE, "type", "bridge")
            run("ip", "link", "set", BRIDGE, "up")
            for index in range(self.count):
                self.hosts.append(Host(index))
                self.hosts[index].connect(self.rate, self.congestion)
        except (Refused, OSError) as why:
            self.__exit__()
            raise Refused(str(why)) from None
        return self.hosts

    def __exit__(self, *_):
        for host in self.hosts:
            host.end()
        subprocess.run(["ip", "link", "delete", BRIDGE], capture_output=True, check=False)


def is_root():
    return os.geteuid() == 0
