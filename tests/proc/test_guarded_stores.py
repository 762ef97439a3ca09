#!/usr/bin/env python3
# A job with a secret on three hosts of virtual cables: workers of its nodes meet, a host without an agent gets in nowhere.
"""Each host is a network namespace; root and the programs ip, unshare and nsenter are needed for that."""
import os
import re
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "regress"))
import jobs  # noqa: E402
import machines  # noqa: E402

BINARY = os.environ["MUSTER_BINARY"]
PATIENCE_S = 200
COORDINATOR_PORT = 29400
# A TCPStore client: says its handshake and a PING, and prints what comes back.
CLIENT = """
import socket, sys
with socket.create_connection((sys.argv[1], int(sys.argv[2])), 30) as store:
    try:
        store.sendall(bytes.fromhex("00cef7853c") + b"\\x0dping")
        print("got", store.recv(4), flush=True)
    except ConnectionError:
        print("got", b"", flush=True)
"""
WORKER = CLIENT.replace("sys.argv[1]", "os.environ['MASTER_ADDR']").replace("sys.argv[2]", "os.environ['MASTER_PORT']")
WORKER = "import os, time\n" + WORKER + """
print("store", os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"], flush=True)
while not os.path.exists(os.environ["GO"]):
    time.sleep(0.01)
"""


class Host:
    """A machine with one cable to all others."""

    def __init__(self, machine):
        self.address, self.inside = machine.address, machine.inside

    def start(self, command, **environment):
        return subprocess.Popen([*self.inside(), *command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                env={**os.environ, **environment})

    def ask(self, address, port):
        return subprocess.run([*self.inside(), sys.executable, "-c", CLIENT, address, str(port)], check=True, text=True,
                              capture_output=True, timeout=PATIENCE_S).stdout.strip()


def skip(why):
    print(f"SKIPPED: {why}")
    sys.exit(77)


def node(host, server, go, conf=""):
    return host.start([BINARY, "run", "--rdzv-backend=muster", f"--rdzv-endpoint={server.address}:{COORDINATOR_PORT}",
                       "--nnodes=2", f"--rdzv-conf=join_timeout=60{conf}", "--no-python", sys.executable, "-c", WORKER],
                      MUSTER_SECRET="the secret of this job", GO=go)


def lines_until(process, pattern, lines):
    for line in process.stdout:
        lines.append(line)
        found = re.search(pattern, line)
        if found:
            return found
    sys.exit(f"{pattern} never came: {lines}")


def run_job(hosts, folder, conf, stranger_gets):
    first, second, third = hosts
    go = os.path.join(folder, f"go{conf}".replace("/", "_"))
    heard = [[], []]
    nodes = [node(first, first, go, conf), node(second, first, go, conf)]
    try:
        for process, lines in zip(nodes, heard):
            lines_until(process, "got b'ping'", lines)
            port = lines_until(process, r"store 10\.77\.0\.\d (\d+)", lines).group(1)
        for target in (port, COORDINATOR_PORT):
            for _ in range(3):
                got = third.ask(first.address, target)
                if got != f"got {stranger_gets}":
                    sys.exit(f"a stranger gets {got} at port {target}")
        for host in (first, second): # whose agents know the secret, and go on being served
            if host.ask(first.address, port) != "got b'ping'":
                sys.exit(f"{host.address} is not served")
        with open(go, "w", encoding="ascii"):
            pass
        for process, lines in zip(nodes, heard):
            lines.append(process.communicate(timeout=PATIENCE_S)[0])
            if process.returncode != 0:
                sys.exit(f"{process.returncode}: {lines}")
    finally:
        for process in nodes:
            if process.poll() is None:
                process.kill()
                process.wait()
    said = "".join(heard[0]) # of both stores' refusals
    if (third.address in said and "refused" in said) != (stranger_gets == b""):
        sys.exit(f"the log says {said}")


def main():
    lack = jobs.isolate()
    if lack:
        skip(lack)
    try:
        with machines.Hub() as hub, tempfile.TemporaryDirectory() as folder:
            hosts = [Host(hub.add(f"host{number}", f"{machines.NETWORK}{number}")) for number in range(1, 4)]
            run_job(hosts, folder, "", b"")
            run_job(hosts, folder, f",allow={hosts[2].address}/32", b"ping")
    except jobs.Skip as why:
        skip(why)


main()
