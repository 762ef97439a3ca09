"""A Slurm cluster on one machine: slurmctld, munged and a slurmd for each of a few virtual nodes, with configuration, network and
spool of their own, in namespaces that end with the test (namespace.py)."""

import os
import re
import shutil
import socket
import subprocess
import time

import namespace

NODES = 4
CONTROLLER = 9  # its number as a host, beside nodes 1, 2, ...
GPUS_PER_NODE = 2  # which are none: Slurm counts them
PATIENCE_S = 100
CONF = """ClusterName=muster
SlurmctldHost={host}({address}{controller})
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock,cred_expire=5
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmdSpoolDir={folder}/spool.%n
StateSaveLocation={folder}/state
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=1
SlurmdParameters=config_overrides
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
ReturnToService=2
KillWait=10
MailProg=/bin/true
GresTypes=gpu
{nodes}
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
NODE = ("NodeName=n{i} NodeHostname={host} NodeAddr={address}{i} Port={port} CPUs=4 Sockets=1 CoresPerSocket=4 "
        "ThreadsPerCore=1 RealMemory=500 Gres=gpu:{gpus} State=UNKNOWN")

daemons = []


def run(*command, code=0, timeout=PATIENCE_S, **more):
    """stdout and stderr of a command that must end with `code` (None: with any)."""
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              timeout=timeout, check=False, **more)
    except subprocess.TimeoutExpired as late:
        raise AssertionError(f"{command} has not ended within {timeout} s:\n{(late.stdout or b'').decode(errors='replace')}\n"
                             f"{situation()}") from None
    assert code is None or done.returncode == code, f"{command}: exit code {done.returncode}, not {code}:\n{done.stdout}"
    return done.stdout


def logs():
    """The ends of the daemons' logs, for whoever has waited in vain."""
    folder = os.path.dirname(os.environ["SLURM_CONF"])
    text = ""
    for name in sorted(os.listdir(folder)):
        if name.endswith(".log"):
            with open(f"{folder}/{name}", encoding="utf-8", errors="replace") as file:
                text += f"--- {name}\n{file.read()[-2000:]}"
    return text


def situation():
    """Jobs, steps, nodes and logs, for whoever has waited in vain; nothing where Slurm itself does not answer."""
    text = ""
    for question in (("squeue", "--all"), ("squeue", "--steps"), ("sinfo", "--Node", "--long"), ("scontrol", "show", "job")):
        try:
            text += subprocess.run(question, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                   timeout=10, check=False).stdout
        except subprocess.TimeoutExpired:
            text += f"{question} has not answered\n"
    return text + logs()


def wait_until(what, test):
    """Slurm's commands tell a state; none of them waits for one."""
    deadline = time.monotonic() + PATIENCE_S
    while not (found := test()):
        assert time.monotonic() < deadline, f"in vain: {what}\n{situation()}"
        time.sleep(0.1)
    return found


def start():
    """Returns when all nodes are idle. Skips the test where Slurm is not installed, or cannot run several nodes."""
    namespace.need("munged", "slurmctld", "slurmd", "srun", "sbatch", "scancel", "scontrol", "sinfo")
    host = socket.gethostname()
    nodes = {f"n{i}": i for i in range(1, NODES + 1)}
    folder = namespace.enter({host: CONTROLLER, **nodes}, apart=nodes)
    os.environ["SLURM_CONF"] = f"{folder}/slurm.conf"
    write(folder, host)
    daemons.append(subprocess.Popen(  # this process is the namespace's first: all of them end with it
        ["munged", "--foreground", "--force", f"--socket={folder}/munge.sock", f"--key-file={folder}/munge.key",
         f"--pid-file={folder}/munge.pid", f"--log-file={folder}/munge.log", f"--seed-file={folder}/munge.seed"],
        stderr=subprocess.DEVNULL))
    wait_until("munged's socket", lambda: os.path.exists(f"{folder}/munge.sock"))
    for command in (["slurmctld", "-D", "-i"], *([*namespace.inside(name), "slurmd", "-D", "-N", name] for name in nodes)):
        daemons.append(subprocess.Popen(command, stderr=subprocess.DEVNULL))
    wait_until("idle nodes", lambda: run("sinfo", "-h", "-t", "idle", "-o", "%D", code=None).strip() == str(NODES))
    return folder


def write(folder, host):
    nodes = "\n".join(NODE.format(i=i, host=host, address=namespace.ADDRESS, port=17000 + i, gpus=GPUS_PER_NODE)
                      for i in range(1, NODES + 1))
    with open(f"{folder}/slurm.conf", "w", encoding="ascii") as file:
        file.write(CONF.format(host=host, address=namespace.ADDRESS, controller=CONTROLLER, folder=folder, nodes=nodes))
    with open(f"{folder}/gres.conf", "w", encoding="ascii") as file:
        file.write(f"NodeName=n[1-{NODES}] Name=gpu File={folder}/gpu[0-{GPUS_PER_NODE - 1}]\n")
    for i in range(GPUS_PER_NODE):
        with open(f"{folder}/gpu{i}", "wb"):
            pass
    with open(f"{folder}/munge.key", "wb") as file:
        os.fchmod(file.fileno(), 0o600)
        file.write(os.urandom(1024))
    os.chmod(folder, 0o755)
    os.mkdir(f"{folder}/state")
    shutil.copy(os.environ["MUSTER_BINARY"], f"{folder}/muster")
    os.environ["PATH"] = f"{folder}:{os.environ['PATH']}"


def state(job):
    """PENDING, RUNNING, COMPLETED, ..."""
    return re.search(r"JobState=(\w+)", run("scontrol", "show", "job", str(job)))[1]


def submit(*arguments):
    return int(run("sbatch", "--parsable", *arguments))
