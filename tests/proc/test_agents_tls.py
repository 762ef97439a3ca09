#!/usr/bin/env python3
# TLS between agents, with real ones: who has a certificate takes part, who has none is told so, and nothing is to be read on the way.
import os
import re
import selectors
import socket
import subprocess
import sys
import tempfile
import threading

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "regress"))
import certificates  # noqa: E402
import jobs  # noqa: E402

BINARY = os.environ["MUSTER_BINARY"]
PATIENCE_S = 60
SECRET = "the secret of this job"
JOB = "a-name-that-nobody-else-has"
SAY = "import os; print('rank', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'])"
WAIT = "import sys; print('here', flush=True); sys.stdin.read()"


def expect(condition, *seen):
    if not condition:
        sys.exit(f"unexpected: {seen}")


class Node:
    def __init__(self, port, conf="", secret=None, code=SAY, nnodes=2):
        environment = {name: value for name, value in os.environ.items() if name != "MUSTER_SECRET"}
        if secret:
            environment["MUSTER_SECRET"] = secret
        conf = ",".join(filter(None, ["join_timeout=60", conf]))
        self.process = subprocess.Popen(
            [BINARY, "run", "--rdzv-backend=muster", f"--rdzv-endpoint=127.0.0.1:{port}", f"--nnodes={nnodes}",
             f"--rdzv-id={JOB}", f"--rdzv-conf={conf}", "--no-python", sys.executable, "-c", code],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)

    def end(self):
        text, _ = self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode, text

    def first_line(self, pattern):
        """Until it says so."""
        for line in self.process.stdout:
            if re.search(pattern, line):
                return line
        sys.exit(f"{pattern} was never said")


class Wire(threading.Thread):
    """Stands between an agent and the coordinator, and writes down what they say to each other."""

    def __init__(self, port):
        super().__init__(daemon=True)
        self.to, self.heard, self.first = port, b"", []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]

    def run(self):
        watched = selectors.DefaultSelector()
        watched.register(self.listener, selectors.EVENT_READ)
        while True:
            for key, _ in watched.select():
                if key.fileobj is self.listener:
                    here, there = self.listener.accept()[0], socket.create_connection(("127.0.0.1", self.to))
                    watched.register(here, selectors.EVENT_READ, [there, True])
                    watched.register(there, selectors.EVENT_READ, [here, False])
                    continue
                try:
                    got = key.fileobj.recv(65536)
                    if key.data[1] and got:
                        self.first.append(got[0])
                        key.data[1] = False
                    self.heard += got
                    key.data[0].sendall(got) if got else key.data[0].shutdown(socket.SHUT_WR)
                except OSError:
                    got = b""
                if not got:
                    watched.unregister(key.fileobj)


def nothing_is_to_be_read(tls, secret):
    port = jobs.free_port()
    host = Node(port, ",".join(filter(None, ["is_host=1", tls])), secret)
    for _ in range(600):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                break
        host.process.poll() is None or sys.exit(f"it has ended: {host.end()}")
        threading.Event().wait(0.1)
    wire = Wire(port)
    wire.start()
    late = Node(wire.port, ",".join(filter(None, ["is_host=0", tls])), secret)
    for node in (late, host):
        code, text = node.end()
        expect(code == 0 and re.search(r"rank [01] of 2", text), code, text)
    named = JOB.encode() in wire.heard or b"MUSTER" in wire.heard
    expect(named == (not tls), "names on the wire", tls)
    expect(not tls or set(wire.first) == {0x16}, wire.first)


def one_differs(host_conf, conf, said_here, said_there):
    port = jobs.free_port()
    host = Node(port, ",".join(filter(None, ["is_host=1", host_conf])))
    late = Node(port, ",".join(filter(None, ["is_host=0", conf])))
    code, text = late.end()
    expect(code == 1 and re.search(said_here, text) and f"127.0.0.1:{port}" in text, code, text)
    expect("127.0.0.1" in host.first_line(said_there))
    host.process.terminate()
    host.end()


def status(*arguments):
    done = subprocess.run([BINARY, "status", *arguments], capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    return done.returncode, done.stdout + done.stderr


def status_asks_over_tls(folder, tls):
    port = jobs.free_port()
    node = Node(port, tls, code=WAIT, nnodes=1)
    node.first_line("here")
    there = [f"127.0.0.1:{port}", f"--rdzv-id={JOB}"]
    member = [f"--tls-cert={folder}/member.pem", f"--tls-key={folder}/member.key", f"--tls-ca={folder}/authority.pem"]
    stranger = [word.replace("member", "stranger") for word in member]
    code, text = status(*there, *member)
    expect(code == 0 and JOB in text, code, text)
    code, text = status(*there)
    expect(code == 1 and "uses TLS, and this one does not" in text, code, text)
    code, text = status(*there, *stranger)
    expect(code == 1 and "it does not accept this side" in text, code, text)
    code, text = status(*there, *member[:2])
    expect(code == 2 and "all of --tls-cert, --tls-key and --tls-ca" in text, code, text)
    code, text = status(*there, *member[:2], "--tls-ca=/nowhere/ca.pem")
    expect(code == 1 and "/nowhere/ca.pem: No such file or directory" in text, code, text)
    node.process.stdin.close()
    node.process.stdin = None
    expect(node.end()[0] == 0)
    code, text = status(*there, *member)
    expect(code == 1 and "nothing answers" in text, code, text)


def files_of_no_use(folder):
    for conf, said in (
        (f"tls_cert={folder}/absent.pem,tls_key={folder}/member.key,tls_ca={folder}/authority.pem",
         "the certificate in .*absent.pem: No such file or directory"),
        (f"tls_cert={folder}/member.pem,tls_key={folder}/stranger.key,tls_ca={folder}/authority.pem",
         "the key in .*stranger.key: key values mismatch"),
        (f"tls_cert={folder}/member.pem,tls_key={folder}/member.key", "tls_ca is not given"),
    ):  # fmt: skip
        code, text = Node(jobs.free_port(), conf).end()
        expect(code != 0 and re.search(said, text), code, text)


jobs.isolate()  # where it can be had: so that no port is taken by a stranger
with tempfile.TemporaryDirectory() as place:
    certificates.make(place)
    MEMBER, STRANGER = certificates.conf(place), certificates.conf(place, "stranger")
    nothing_is_to_be_read("", None)  # else the next ones would say nothing
    nothing_is_to_be_read(MEMBER, None)
    nothing_is_to_be_read(MEMBER, SECRET)
    one_differs(MEMBER, "", "uses TLS, and this one does not", "uses TLS, and this one does not")
    one_differs("", MEMBER, "does not use TLS, and this node does", "does not use TLS, and this one does")
    one_differs(MEMBER, STRANGER, "it does not accept this side", "its certificate: unable to get local issuer")
    status_asks_over_tls(place, MEMBER)
    files_of_no_use(place)
