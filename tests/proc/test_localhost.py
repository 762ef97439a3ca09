#!/usr/bin/env python3
# Two hosts on a virtual cable. The first calls itself localhost, as operators of clusters write it; the other uses its name.
# timeout: 240
# waits: yes
"""Each host is a network namespace; root and the programs ip, unshare and nsenter are needed for that."""
import os
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.dirname(HERE), os.path.join(os.path.dirname(HERE), "regress")]
import cases  # noqa: E402
import jobs  # noqa: E402
import machines  # noqa: E402

BINARY = os.environ["MUSTER_BINARY"]
PATIENCE_S = 100
FIRST, SECOND = f"{machines.NETWORK}1", f"{machines.NETWORK}2"
NAME = "first-host"
BACKENDS = ("static", "c10d", "muster")
# Its MASTER_ADDR is that of a store.
WORKER = """
import os, socket
with socket.create_connection((os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])), 30) as store:
    store.sendall(bytes.fromhex("00cef7853c") + b"\\x0dping")
    assert store.recv(4) == b"ping"
print("rank", os.environ["RANK"], "met at", os.environ["MASTER_ADDR"], flush=True)
"""
hosts = []


def start(host, backend, rank, endpoint, *options, nnodes=2, secret=None):
    """An agent, with what it says to be read from .stdout."""
    where, port = endpoint
    if backend == "static":
        meet = [f"--node-rank={rank}", f"--master-addr={where}", f"--master-port={port}"]
    else:
        at = [f"--rdzv-endpoint={f'[{where}]' if ':' in where else where}:{port}"] if where else []
        meet = [f"--rdzv-backend={backend}", "--rdzv-id=7", *at]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MUSTER_SECRET", "LOGLEVEL"))}
    return subprocess.Popen([*host.inside(), BINARY, "run", f"--nnodes={nnodes}", *meet, *options, "--no-python",
                             sys.executable, "-S", "-c", WORKER], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                            preexec_fn=jobs.die_with_parent, env={**environment, **({"MUSTER_SECRET": secret} if secret else {})})


def said_until(agent, words):
    """What it says, up to a line with these words."""
    said = []
    for line in agent.stdout:
        said.append(line)
        if all(word in line for word in words):
            return "".join(said)
    raise jobs.Failed(f"no line with {words}: {said}")


def end(*agents):
    for agent in agents:
        agent.kill()
        agent.communicate()


def play(what, backend, endpoints, first_to_come, **more):
    """Both agents to the end. Returns what they have said."""
    agents = [None, None]
    try:
        for turn in (first_to_come, 1 - first_to_come):
            before = refusals(hosts[1])
            agents[turn] = start(hosts[turn], backend, turn, endpoints[turn], **more)
            while turn == first_to_come == 1 and refusals(hosts[1]) == before and agents[1].poll() is None:
                time.sleep(0.01)
        said = [agent.communicate(timeout=PATIENCE_S)[0] for agent in agents]
    except subprocess.TimeoutExpired:
        raise jobs.Failed(f"{what}, {backend}, node {first_to_come} first: they wait for ever") from None
    finally:
        end(*(agent for agent in agents if agent and agent.poll() is None))
    codes = [agent.returncode for agent in agents]
    jobs.check(codes == [0, 0] and all("met at" in text for text in said), f"{what}, {backend}: {codes}\n{said[0]}\n{said[1]}")
    return said


def refusals(host):
    """Connections from this host that somebody has refused."""
    lines = subprocess.run([*host.inside(), "cat", "/proc/net/snmp"], check=True, text=True, capture_output=True).stdout
    names, numbers = [line.split() for line in lines.splitlines() if line.startswith("Tcp:")]
    return int(numbers[names.index("AttemptFails")])


def the_others_use_its_name():
    for own in ("localhost", "127.0.1.1", "::1"):
        for backend in BACKENDS:
            for first in (0, 1):
                port = jobs.free_port()
                said = play(own, backend, [(own, port), (NAME, port)], first)
                jobs.check(said[0].count(f"or at {FIRST}:{port}") == 1, f"{own}, {backend}: no address and port in\n{said[0]}")
                jobs.check("leads each host" not in said[1], f"{own}, {backend}: node 1 names the right host\n{said[1]}")


def everybody_calls_itself_localhost():
    """They cannot meet, and hear why at once, and as often as they say that they wait."""
    ports = {backend: jobs.free_port() for backend in BACKENDS}
    agents = {(backend, rank): start(host, backend, rank, ("127.0.1.1", ports[backend])) for backend in BACKENDS for rank, host in enumerate(hosts)}
    try:
        for (backend, rank), agent in agents.items():
            said = said_until(agent, ["waiting", "leads each host to itself"])
            jobs.check("waiting" not in said.splitlines()[0] and "leads each host to itself" in said.splitlines()[0],
                       f"{backend}, node {rank}: not at once\n{said}")
    finally:
        end(*agents.values())


def nobody_gives_an_endpoint():
    """A host that trains alone in a job of several says so, and what finds it. Agents of one host meet, as torchrun's do."""
    for backend in BACKENDS[1:]:
        line = [BINARY, "run", "--nnodes=1:3", f"--rdzv-backend={backend}", "--rdzv-conf=last_call_timeout=1", "--no-python", "true"]
        alone = subprocess.run([*hosts[0].inside(), *line], check=False, text=True, capture_output=True, timeout=PATIENCE_S)
        told = [text for text in alone.stderr.splitlines() if "--rdzv-endpoint" in text]
        jobs.check(alone.returncode == 0 and len(told) == 1 and f"--rdzv-endpoint={FIRST}:29400" in told[0] and "not given" in told[0],
                   f"{backend}: {alone}")
        two = [start(hosts[0], backend, rank, (None, None)) for rank in range(2)]
        said = [agent.communicate(timeout=PATIENCE_S)[0] for agent in two]
        jobs.check([agent.returncode for agent in two] == [0, 0] and all("met at" in text for text in said), f"{backend}: {said}")
    with tempfile.TemporaryDirectory() as folder:
        line = [BINARY, "run", "--nnodes=1:3", "--rdzv-backend=c10d", "--rdzv-conf=last_call_timeout=1,store_type=file", "--no-python", "true"]
        alone = subprocess.run(line, check=False, text=True, capture_output=True, timeout=PATIENCE_S, env={**os.environ, "TMPDIR": folder})
        jobs.check(alone.returncode == 0 and alone.stderr.count("--rdzv-endpoint is not given") == 1, f"a file: {alone}")


def a_secret_guards_it():
    port = jobs.free_port()
    play("with a secret", "muster", [("localhost", port), (NAME, port)], 0, secret="the secret of this job")
    agent = start(hosts[0], "muster", 0, ("localhost", port), secret="the secret of this job")
    try:
        said_until(agent, [f"or at {FIRST}:{port}"])
        stranger = start(hosts[1], "muster", 1, (NAME, port), "--rdzv-conf=join_timeout=3", secret="another secret than this")
        said = stranger.communicate(timeout=PATIENCE_S)[0]
        jobs.check(stranger.returncode == 1 and "met at" not in said, said)
        client = "import socket\ns = socket.create_connection(('%s', %d), 30)\n" % (FIRST, port)
        client += "s.sendall(bytes.fromhex('00cef7853c') + b'\\x0dping')\ntry:\n    print(s.recv(4))\nexcept ConnectionError:\n    print(b'')"
        got = subprocess.run([*hosts[1].inside(), sys.executable, "-S", "-c", client], check=True, text=True, capture_output=True)
        jobs.check(got.stdout.strip() == "b''", f"a stranger gets {got.stdout}")
    finally:
        end(agent)


def listens_at(host):
    lines = subprocess.run([*host.inside(), "cat", "/proc/net/tcp", "/proc/net/tcp6"], check=True, text=True, capture_output=True)
    sockets = [line.split() for line in lines.stdout.splitlines() if ":" in line and "local" not in line]
    return {words[1].rsplit(":", 1)[0] for words in sockets if words[3] == "0A"}


def one_node_stays_on_loopback():
    """Where no second one can come, nothing listens on other addresses."""
    for options in (["--standalone"], ["--nnodes=1", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0"],
                    ["--nnodes=1", "--rdzv-backend=muster", "--rdzv-endpoint=localhost:0"],
                    ["--nnodes=1", "--master-addr=localhost", f"--master-port={jobs.free_port()}"]):
        with tempfile.TemporaryDirectory() as folder:
            begun = os.path.join(folder, "begun")
            os.mkfifo(begun)
            agent = subprocess.Popen([*hosts[0].inside(), BINARY, "run", *options, "--no-python", "sh", "-c",
                                      f"echo > {begun}; exec sleep 100"], stderr=subprocess.DEVNULL, preexec_fn=jobs.die_with_parent)
            try:
                with open(begun, encoding="ascii"):
                    at = listens_at(hosts[0])
            finally:
                agent.terminate()
                agent.wait()
        loopback = {"0100007F", "00000000000000000000000001000000"}
        jobs.check(at and at <= loopback, f"{options}: listens at {at}")


def a_host_without_127_0_0_1():
    """Of IPv6 alone. Node rank 0 reaches its own store all the same, also by its name, which it does not look up."""
    hosts[0].run("ip", "addr", "del", "127.0.0.1/8", "dev", "lo")
    try:
        for backend in BACKENDS:
            port = jobs.free_port()
            play("no 127.0.0.1", backend, [("localhost", port), (NAME, port)], 0)
        port = jobs.free_port()
        play("no 127.0.0.1", "static", [(NAME, port), (NAME, port)], 0)
        alone = subprocess.run([*hosts[0].inside(), BINARY, "run", "--standalone", "--no-python", sys.executable, "-S", "-c",
                                WORKER], check=False, text=True, capture_output=True, timeout=PATIENCE_S)
        jobs.check(alone.returncode == 0 and "met at ::1" in alone.stdout, f"--standalone: {alone}")
    finally:
        hosts[0].run("ip", "addr", "add", "127.0.0.1/8", "dev", "lo")


def main():
    lack = jobs.isolate(mounts=True)
    if lack:
        print(f"SKIPPED: {lack}")
        return 77
    try:
        with machines.Hub() as hub, tempfile.NamedTemporaryFile("w") as names:
            names.write(f"127.0.0.1 localhost\n::1 localhost\n{FIRST} {NAME}\n{SECOND} second-host\n")
            names.flush()
            jobs.bind_mount(names.name, "/etc/hosts")
            hosts.extend((hub.add("first", FIRST, NAME), hub.add("second", SECOND, "second-host")))
            cases.run([the_others_use_its_name, everybody_calls_itself_localhost, nobody_gives_an_endpoint, a_secret_guards_it,
                       one_node_stays_on_loopback, a_host_without_127_0_0_1])
    except jobs.Skip as why:
        print(f"SKIPPED: {why}")
        return 77
    return 0


if __name__ == "__main__":
    sys.exit(main())
