#!/usr/bin/env python3
# A job's secret, with real agents: who knows it takes part, who does not is told so, and workers never see it.
import os
import re
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "regress"))
import jobs  # noqa: E402

BINARY = os.environ["MUSTER_BINARY"]
PATIENCE_S = 60
SECRET, OTHER = "the secret of this job", "the secret of another job"
# What a worker finds in its own environment, and in those of its ancestors as far as they are Muster's; and how often the
# secret stands in the memory of its parent, the guardian, and of the agent, where that may be read.
LOOK = (
    f"SECRET = {bytes(byte ^ 1 for byte in SECRET.encode())}\n"  # not as it is: this text stands in their memory, too
    "import os\n"
    "pid, found = os.getpid(), []\n"
    "for _ in range(3):\n"
    "    found.append(b'secret of this' in open(f'/proc/{pid}/environ', 'rb').read())\n"
    "    pid = int(open(f'/proc/{pid}/stat').read().rsplit(')', 1)[1].split()[1])\n"
    "def copies(pid):\n"
    "    count = 0\n"
    "    with open(f'/proc/{pid}/maps') as maps, open(f'/proc/{pid}/mem', 'rb', 0) as memory:\n"
    "        for line in maps:\n"
    "            if ' rw' in line and '[v' not in line:\n"
    "                begin, end = (int(text, 16) for text in line.split()[0].split('-'))\n"
    "                memory.seek(begin)\n"
    "                count += memory.read(end - begin).count(bytes(byte ^ 1 for byte in SECRET))\n"
    "    return count\n"
    "try:\n"
    "    agent = int(open(f'/proc/{os.getppid()}/stat').read().rsplit(')', 1)[1].split()[1])\n"
    "    print('copies', copies(os.getppid()), copies(agent))\n"
    "except OSError as error:\n"
    "    print('copies unknown', error)\n"
    "print('found', any(found), 'MUSTER_SECRET' in os.environ, 'rank', os.environ['RANK'])\n"
)


class Node:
    def __init__(self, port, secret=None, conf="join_timeout=60"):
        environment = {name: value for name, value in os.environ.items() if name != "MUSTER_SECRET"}
        if secret:
            environment["MUSTER_SECRET"] = secret
        self.process = subprocess.Popen(
            [BINARY, "run", "--rdzv-backend=muster", f"--rdzv-endpoint=127.0.0.1:{port}", "--nnodes=2",
             f"--rdzv-conf={conf}", "--no-python", sys.executable, "-c", LOOK],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)

    def end(self):
        text, _ = self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode, text

    def first_line(self, pattern):
        """Until it says so."""
        for line in self.process.stdout:
            if re.search(pattern, line):
                return line
        sys.exit(f"{pattern} was never said")


def expect(condition, *seen):
    if not condition:
        sys.exit(f"unexpected: {seen}")


def everybody_knows_it(folder):
    path = os.path.join(folder, "secret")
    with open(path, "w", encoding="ascii", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        file.write(SECRET + "\n")
    port = jobs.free_port()
    nodes = [Node(port, SECRET), Node(port, conf=f"secret_file={path}")] # either way
    for node in nodes:
        code, text = node.end()
        expect(code == 0 and re.search(r"found False False rank [01]", text), code, text)
        expect(re.search(r"^copies (0 1$|unknown)", text, re.M), text)


def one_does_not(host_secret, secret, said_here, said_there):
    port = jobs.free_port()
    host = Node(port, host_secret, "is_host=1,join_timeout=60")
    late = Node(port, secret, "is_host=0,join_timeout=60")
    code, text = late.end()
    expect(code == 1 and re.search(said_here, text) and f"127.0.0.1:{port}" in text, code, text)
    expect("127.0.0.1" in host.first_line(said_there))
    host.process.terminate()
    host.end()


def a_file_that_others_can_read(folder):
    path = os.path.join(folder, "open")
    with open(path, "w", encoding="ascii") as file:
        file.write(SECRET)
    os.chmod(path, 0o644)
    code, text = Node(jobs.free_port(), conf=f"secret_file={path}").end()
    expect(code == 1 and f"chmod 600 {path}" in text, code, text)


jobs.isolate()  # where it can be had: so that no port is taken by a stranger
with tempfile.TemporaryDirectory() as folder:
    everybody_knows_it(folder)
    a_file_that_others_can_read(folder)
one_does_not(SECRET, OTHER, "its secret or --rdzv-id is not this node's", "its secret or --rdzv-id differs")
one_does_not(SECRET, None, "secret_file=FILE", "JOIN without the job's secret")
one_does_not(None, SECRET, "has no secret, and this one has", "has no secret, and this one has")
