"""A machine of its own for a test: processes, mounts, network and host names of namespaces that end with the test.

enter(hosts) starts the running script anew inside; there it returns. Host names lead to addresses of an interface that goes
nowhere: where a machine has nothing but loopback, resolvers find no host, and Open MPI does not start. Without the right to do
so (not root, a container without CAP_SYS_ADMIN) the test is skipped."""

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import tempfile

INSIDE = "MUSTER_TEST_NAMESPACE"
ADDRESS = "10.99.0."
PR_SET_PDEATHSIG = 1
UNSHARE = ["unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]


def skip(why):
    print(f"SKIP: {why}")
    sys.exit(77)


def need(*programs):
    missing = [name for name in programs if shutil.which(name) is None]
    if missing:
        skip(f"not installed: {', '.join(missing)}")


def end_with_parent():
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def ip(*arguments):
    subprocess.run(["ip", *arguments], check=True)


machines = {}  # name -> the process that holds its network


def inside(name):
    """What a command begins with that is to run on this machine."""
    return ["nsenter", f"--net=/proc/{machines[name].pid}/ns/net"]


def make_machine(name, i):
    """A network of its own, at the other end of a cable."""
    holder = subprocess.Popen(["unshare", "--net", "sh", "-c", "echo ready; exec sleep infinity"], stdout=subprocess.PIPE,
                              preexec_fn=end_with_parent)
    assert holder.stdout.readline() == b"ready\n"
    machines[name] = holder
    ip("link", "add", f"cable{i}", "type", "veth", "peer", "name", "eth0", "netns", str(holder.pid))
    ip("link", "set", f"cable{i}", "master", "hosts0", "up")
    for arguments in (["address", "add", f"{ADDRESS}{i}/24", "dev", "eth0"], ["link", "set", "eth0", "up"],
                      ["link", "set", "lo", "up"]):
        subprocess.run([*inside(name), "ip", *arguments], check=True)


def enter(hosts, apart=()):
    """`hosts`: host number i (from 1) has the address ADDRESS i; names may repeat addresses. A dictionary name -> i. Those
    `apart` are machines of their own, as far as the network goes."""
    os.environ["PATH"] += ":/usr/sbin:/sbin"
    need("unshare", "nsenter", "ip", "mount")
    if os.environ.get(INSIDE) is None:
        if subprocess.run([*UNSHARE, "true"], stderr=subprocess.DEVNULL, check=False).returncode != 0:
            skip("namespaces cannot be made here (root and CAP_SYS_ADMIN are needed)")
        with tempfile.TemporaryDirectory(prefix="muster_test_") as folder:
            environment = dict(os.environ, **{INSIDE: folder, "TMPDIR": folder})
            sys.exit(subprocess.run([*UNSHARE, sys.executable, *sys.argv], env=environment, check=False,
                                    preexec_fn=end_with_parent).returncode)
    folder = os.environ[INSIDE]
    ip("link", "set", "lo", "up")
    if apart:
        ip("link", "add", "hosts0", "type", "bridge")
    else:
        ip("link", "add", "hosts0", "type", "veth", "peer", "name", "hosts1")
        ip("link", "set", "hosts1", "up")
    ip("link", "set", "hosts0", "up")
    for name in apart:
        make_machine(name, hosts[name])
    for i in sorted({i for name, i in hosts.items() if name not in apart}):
        ip("address", "add", f"{ADDRESS}{i}/24", "dev", "hosts0")
    with open(f"{folder}/hosts", "w", encoding="ascii") as file:
        file.write("127.0.0.1 localhost\n")
        file.writelines(f"{ADDRESS}{i} {name}\n" for name, i in hosts.items())
    with open(f"{folder}/resolv.conf", "w", encoding="ascii") as file:
        file.write("nameserver 127.0.0.1\noptions timeout:1 attempts:1\n")
    for name in ("hosts", "resolv.conf"):
        subprocess.run(["mount", "--bind", f"{folder}/{name}", os.path.realpath(f"/etc/{name}")], check=True)
    return folder
