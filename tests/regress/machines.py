"""Machines on one: a network namespace for each, joined by a virtual cable to a bridge. They can be cut off without a word,
and lose power.

Nothing of them has a name outside of this process's own network (jobs.isolate() first). A machine lasts as long as the
process that holds it, which dies with this one: nothing is left behind, however the test or benchmark ends."""

import shutil
import signal
import subprocess

import jobs

INTERFACE = "eth0"  # of each machine
NETWORK = "10.77.0."  # what all addresses begin with
HERE = f"{NETWORK}254"  # this process's own


def run(*words):
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False)
    except OSError as why:
        raise jobs.Skip(f"{words[0]}: {why.strerror}") from None
    if done.returncode != 0:
        raise jobs.Skip(f"{' '.join(words)}: {done.stderr.strip() or done.returncode}")


class Machine:
    """port: the bridge's end of its cable."""

    def __init__(self, name, address, hostname):
        self.name, self.address, self.port = name, address, f"to-{name}"
        self._spaces = ["-n", "-u"] if hostname else ["-n"]
        script = "ip link set lo up && echo ready && exec sleep infinity"
        self.holder = subprocess.Popen(
            ["unshare", *self._spaces, "--", "sh", "-c", f'hostname "$0" && {script}' if hostname else script, hostname or ""],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, preexec_fn=jobs.die_with_parent)
        if self.holder.stdout.readline() != "ready\n":
            raise jobs.Skip("no right to make network namespaces")

    def inside(self):
        """What a command that is to run on this machine begins with."""
        return ["nsenter", "-t", str(self.holder.pid), *self._spaces, "--"]

    def run(self, *words):
        run(*self.inside(), *words)

    def end(self):
        self.holder.kill()
        self.holder.wait()
        self.holder.stdout.close()


class Hub:
    """The bridge and its machines, as a context."""

    def __init__(self):
        for tool in ("ip", "nsenter", "unshare"):
            if shutil.which(tool) is None:
                raise jobs.Skip(f"no {tool}")
        self.machines = {}
        run("ip", "link", "add", "hub", "type", "bridge")
        run("ip", "addr", "add", f"{HERE}/24", "dev", "hub")
        run("ip", "link", "set", "hub", "up")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def add(self, name, address, hostname=None):
        """A machine with this address; hostname: its own, else this process's."""
        machine = self.machines[name] = Machine(name, address, hostname)
        run("ip", "link", "add", machine.port, "type", "veth", "peer", "name", INTERFACE, "netns", str(machine.holder.pid))
        machine.run("ip", "addr", "add", f"{address}/24", "dev", INTERFACE)
        machine.run("ip", "link", "set", INTERFACE, "up")
        run("ip", "link", "set", machine.port, "master", "hub", "up")
        return machine

    def cut_off(self, name):
        run("ip", "link", "set", self.machines[name].port, "nomaster")

    def heal(self, name):
        run("ip", "link", "set", self.machines[name].port, "master", "hub")

    def lose_power(self, name, agent):
        """The machine and the agent on it are gone; nobody is told."""
        self.cut_off(name)
        agent.signal(signal.SIGKILL)
        agent.expect(jobs.SOON_S, -signal.SIGKILL)

    def close(self):
        for machine in self.machines.values():
            machine.end()
        # The kernel takes its time with those of a network that ends.
        for link in (*(machine.port for machine in self.machines.values()), "hub"):
            subprocess.run(["ip", "link", "del", link], stderr=subprocess.DEVNULL, check=False)
        self.machines = {}
