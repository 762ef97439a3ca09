"""A machine of its own for a test: processes, mounts, network and host names of namespaces that end with the test.

enter(hosts) starts the running script anew inside; there it returns. Host names lead to addresses of an interface that goes
nowhere: where a machine has nothing but loopback, resolvers find no host, and Open MPI does not start. Without the right to do
so (not root, a container without CAP_SYS_ADMIN) the test is skipped."""

import os
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "regress"))
import jobs  # noqa: E402
import machines  # noqa: E402

INSIDE = "MUSTER_TEST_NAMESPACE"
ADDRESS = machines.NETWORK
UNSHARE = ["unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]


def skip(why):
    print(f"SKIP: {why}")
    sys.exit(77)


def need(*programs):
    missing = [name for name in programs if shutil.which(name) is None]
    if missing:
        skip(f"not installed: {', '.join(missing)}")


hub = None  # of the machines apart


def inside(name):
    """What a command begins with that is to run on this machine."""
    return hub.machines[name].inside()


def enter(hosts, apart=()):
    """`hosts`: host number i (from 1) has the address ADDRESS i; names may repeat addresses. A dictionary name -> i. Those
    `apart` are machines of their own, as far as the network goes."""
    global hub
    os.environ["PATH"] += ":/usr/sbin:/sbin"
    need("unshare", "nsenter", "ip", "mount")
    if os.environ.get(INSIDE) is None:
        if subprocess.run([*UNSHARE, "true"], stderr=subprocess.DEVNULL, check=False).returncode != 0:
            skip("namespaces cannot be made here (root and CAP_SYS_ADMIN are needed)")
        with tempfile.TemporaryDirectory(prefix="muster_test_") as folder:
            environment = dict(os.environ, **{INSIDE: folder, "TMPDIR": folder})
            sys.exit(subprocess.run([*UNSHARE, sys.executable, *sys.argv], env=environment, check=False,
                                    preexec_fn=jobs.die_with_parent).returncode)
    folder = os.environ[INSIDE]
    try:
        machines.run("ip", "link", "set", "lo", "up")
        hub = machines.Hub() if apart else None
        for name in apart:
            hub.add(name, f"{ADDRESS}{hosts[name]}")
        if not apart:  # a cable to nowhere
            machines.run("ip", "link", "add", "hub", "type", "veth", "peer", "name", "nowhere")
            machines.run("ip", "link", "set", "nowhere", "up")
            machines.run("ip", "link", "set", "hub", "up")
        for i in sorted({i for name, i in hosts.items() if name not in apart}):
            machines.run("ip", "addr", "add", f"{ADDRESS}{i}/24", "dev", "hub")
    except jobs.Skip as lack:
        skip(lack)
    with open(f"{folder}/hosts", "w", encoding="ascii") as file:
        file.write("127.0.0.1 localhost\n")
        file.writelines(f"{ADDRESS}{i} {name}\n" for name, i in hosts.items())
    with open(f"{folder}/resolv.conf", "w", encoding="ascii") as file:
        file.write("nameserver 127.0.0.1\noptions timeout:1 attempts:1\n")
    for name in ("hosts", "resolv.conf"):
        subprocess.run(["mount", "--bind", f"{folder}/{name}", os.path.realpath(f"/etc/{name}")], check=True)
    return folder
