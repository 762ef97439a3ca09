#!/usr/bin/env python3
# `srun muster run` on a real Slurm of four virtual nodes: ranks, devices, parts of allocations, failures, the loss of the first
# host, mistakes, scancel, pre-emption, requeue; mpirun in a batch script.
# waits: yes
import os
import re
import shutil
import signal
import subprocess

import cluster

PROGRAM = os.path.join(os.path.dirname(os.environ["MUSTER_BINARY"]), "tests", "comm", "comm_launched")  # of libmuster
TOY = os.path.join(os.path.dirname(os.environ["MUSTER_BINARY"]), "examples", "toy")
DEPLOY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "deploy", "slurm", "train.sbatch")
SHOW = "echo rank=$RANK of=$WORLD_SIZE node=$GROUP_RANK proc=$SLURM_PROCID on=$SLURMD_NODENAME run=$TORCHELASTIC_RUN_ID"
FOREVER = ["--log-dir=/dev/null", "--no-python", TOY, "100000000", "1000000"]


def srun(*arguments, code=0, **more):
    return cluster.run("srun", *arguments, code=code, **more)


def shell(text):
    return ["muster", "run", "--log-dir=/dev/null", "--no-python", "sh", "-c", text]


def no_option_is_needed():
    text = srun("-N4", *shell(SHOW), env=dict(os.environ, LOGLEVEL="INFO"))
    found = re.findall(r"^rank=(\d) of=4 node=\1 proc=(\1) on=n(\d) run=(\d+)$", text, re.M)
    assert sorted(rank for rank, *_ in found) == list("0123"), text
    assert len({on for *_, on, _ in found}) == 4 and len({job for *_, job in found}) == 1, text
    job = int(found[0][3])
    places = ",".join(f"n{i}:{12000 + job}" for i in (1, 2, 3))
    assert re.search(rf"scheduler: Slurm job {job}, step 0, agent \d of 4: --nnodes=4 --rdzv-backend=muster "
                     rf"--rdzv-id={job} --node-rank=\d --rdzv-endpoint={places} --preempt-signal=SIGUSR1", text), text


def devices_are_workers():
    text = srun("-N2", "--gpus-per-node=2", *shell("echo rank=$RANK local=$LOCAL_RANK of=$LOCAL_WORLD_SIZE"))
    assert sorted(re.findall(r"rank=(\d) local=(\d) of=2", text)) == [("0", "0"), ("1", "1"), ("2", "0"), ("3", "1")], text


def two_steps_at_once_are_two_jobs(folder):
    script = f"{folder}/steps.sh"
    with open(script, "w", encoding="ascii") as file:
        file.write("#!/bin/sh\nfor i in 1 2; do srun -N2 -n2 --exact muster run --log-dir=/dev/null --no-python sh -c "
                   "'echo $SLURM_STEP_ID.$RANK of $WORLD_SIZE' & done; wait\n")
    cluster.run("sbatch", "-N2", "--ntasks-per-node=2", "--wait", f"--output={folder}/steps.log", script)
    with open(f"{folder}/steps.log", encoding="ascii") as file:
        text = file.read()
    assert sorted(re.findall(r"^(\d\.\d) of 2$", text, re.M)) == ["0.0", "0.1", "1.0", "1.1"], text


def parts_of_an_allocation(folder):
    """A step on some of the nodes, none of them the first; two components of a heterogeneous job; one of them.

    --overlap: a step that waits for the end of the one before misses the news of it now and then, and srun asks again after
    two minutes."""
    script = f"{folder}/parts.sh"
    count = "muster run --log-dir=/dev/null --no-python sh -c 'echo $0.$RANK of $WORLD_SIZE on $SLURMD_NODENAME'"
    with open(script, "w", encoding="ascii") as file:
        file.write(f"#!/bin/sh\n#SBATCH -N2\n#SBATCH hetjob\n#SBATCH -N2\nsrun --overlap --het-group=0,1 {count} all\n"
                   f"srun --overlap --het-group=1 {count} second\nsrun --overlap {count} first\nmuster run --no-python true\n")
    cluster.run("sbatch", "--wait", f"--output={folder}/parts.log", script, code=1)
    text = read(f"{folder}/parts.log")
    for name, size in (("all", 4), ("first", 2), ("second", 2)):
        assert sorted(re.findall(rf"^{name}\.(\d) of {size} on n\d$", text, re.M)) == list("0123")[:size], text
    assert re.search(r"the batch script of Slurm job \d+, which has 4 nodes", text), text
    step = f"srun --overlap -N2 --exclude=n1 {count} late; MASTER_ADDR=n1 srun --overlap -N2 --exclude=n1 {count} other"
    text = cluster.run("salloc", "-N4", "sh", "-c", step)
    for name in ("late", "other"):
        assert sorted(re.findall(rf"^{name}\.(\d) of 2 on n[234]$", text, re.M)) == list("01"), text
    assert re.search(r"MASTER_ADDR is a node of the job but not one of the nodes of Slurm job \d+, step 1", text), text


def mpirun_in_a_batch_script(folder):
    """Both have set their variables: mpirun has started the agents."""
    if shutil.which("mpirun.openmpi") is None:
        print("SKIPPED mpirun_in_a_batch_script: mpirun.openmpi is not installed")
        return
    script = f"{folder}/mpirun.sh"
    with open(script, "w", encoding="ascii") as file:
        file.write("#!/bin/sh\nmpirun.openmpi --allow-run-as-root --map-by ppr:1:node --mca oob_tcp_if_include eth0 muster run "
                   "--log-dir=/dev/null --no-python sh -c 'echo rank=$RANK of=$WORLD_SIZE on=$SLURMD_NODENAME run=$TORCHELASTIC_RUN_ID'\n")
    cluster.run("sbatch", "-N2", "--wait", f"--output={folder}/mpirun.log", script, code=None)
    found = re.findall(r"^rank=(\d) of=2 on=(n\d) run=mpi-\d+$", read(f"{folder}/mpirun.log"), re.M)
    assert sorted(rank for rank, _ in found) == list("01") and len({on for _, on in found}) == 2, read(f"{folder}/mpirun.log")


def a_failure_comes_through():
    text = srun("-N2", *shell('test "$RANK" = 0 || exit 7; sleep 100'), code=1)
    assert re.search(r"exitcode +: 7", text) and "ChildFailedError" in text, text


def what_cannot_be_meant_is_told(folder):
    cases = (  # where, options, said
        (["-N2", "--ntasks-per-node=4"], [], "8 agents have been started on 2 nodes, .* srun --ntasks-per-node=1"),
        (["-N2"], ["--nnodes=1"], r"Slurm job \d+, step \d+ has started 2 agents .*but --nnodes says that a job has one"),
        (["-N2"], ["--nnodes=4"], "would wait for nodes that do not come"),
    )
    for where, options, expected in cases:
        text = srun(*where, "muster", "run", *options, "--no-python", "true", code=None, timeout=30)
        assert re.search(expected, text), text
    script = f"{folder}/forgotten.sh"
    with open(script, "w", encoding="ascii") as file:
        file.write("#!/bin/sh\nmuster run --no-python true\n")
    cluster.run("sbatch", "-N2", "--wait", f"--output={folder}/forgotten.log", script, code=1)
    with open(f"{folder}/forgotten.log", encoding="ascii") as file:
        text = file.read()
    assert re.search(r"the batch script of Slurm job \d+, which has 2 nodes, .*srun --ntasks-per-node=1", text), text
    text = cluster.run("salloc", "-N2", "muster", "run", "--no-python", "true", code=1)
    assert "this is the shell of Slurm job" in text, text
    for scheduler in ("auto", "none"):
        each_alone = srun("-N2", "muster", "run", "--standalone", f"--scheduler={scheduler}", "--no-python", "true")
        assert ("--standalone" in each_alone) == (scheduler == "auto"), each_alone


def whatever_srun_starts_is_one_job(folder):
    """A script, a container (here a namespace of processes, in which SLURM_TASK_PID means nothing): not a job a node."""
    script = f"{folder}/step.sh"
    with open(script, "w", encoding="ascii") as file:
        file.write(f"#!/bin/sh\nmuster run --log-dir=/dev/null --no-python sh -c '{SHOW}'\n")
    os.chmod(script, 0o755)
    for line in ([script], ["sh", "-c", f"{script}; true"], ["sh", "-c", f"setsid -w {script}"],
                 ["unshare", "--pid", "--fork", "--mount-proc", "sh", "-c", f"{script}; true"],
                 ["unshare", "--pid", "--fork", script]):
        text = srun("-N2", *line)
        assert sorted(re.findall(r"^rank=(\d) of=2 ", text, re.M)) == list("01"), f"{line}\n{text}"


def a_shell_at_a_terminal_runs_here(folder):
    """srun --pty bash, as somebody types it, in a step of several tasks and of several nodes."""
    line = f"muster run --log-dir=/dev/null --nproc-per-node=2 --no-python sh -c '{SHOW}'"
    for where in (["-N1", "-n4"], ["-N2", "-n2"]):
        command = ["script", "-qec", " ".join(["srun", *where, "--pty", "bash", "--norc", "-i"]), f"{folder}/typescript"]
        done = subprocess.run(command, input=f"{line}\nexit\n", stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              timeout=cluster.PATIENCE_S, check=False, env=dict(os.environ, OMP_NUM_THREADS="1"))
        text = done.stdout.replace("\r", "")
        assert sorted(re.findall(r"^rank=(\d) of=2 node=0 ", text, re.M)) == list("01"), text
        several = re.search(r"this is a shell of Slurm job \d+, step 0, which has 2 nodes: going on here alone", text)
        assert (several is not None) == (where[0] == "-N2"), text


def a_line_for_torchrun_means_what_it_says(folder):
    os.symlink("muster", f"{folder}/torchrun")
    line = ["torchrun", "--log-dir=/dev/null", "--no-python", "sh", "-c", SHOW]
    text = srun("-N2", *line)
    assert re.findall(r"^rank=0 of=1 node=0 ", text, re.M) == ["rank=0 of=1 node=0 "] * 2, text
    assert len(re.findall(r"SLURM_STEP_NUM_TASKS=2 says that there are several agents", text)) == 2, text
    text = srun("-N2", *line, env=dict(os.environ, MUSTER_SCHEDULER="auto"))
    assert sorted(re.findall(r"^rank=(\d) of=2 ", text, re.M)) == list("01"), text


def processes_of(name, node=None):
    """Their process ids, in the order of their start; of those on this node of Slurm's."""
    found = []
    for pid in sorted(map(int, filter(str.isdigit, os.listdir("/proc")))):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                fits = file.read().split(b"\0")[0].decode().endswith(name)
            with open(f"/proc/{pid}/environ", "rb") as file:
                fits = fits and (node is None or f"SLURMD_NODENAME={node}".encode() in file.read().split(b"\0"))
        except OSError:
            continue
        found += [pid] if fits else []
    return found


def the_loss_of_the_first_host_is_survived(folder):
    """Its agent is killed; the others meet at the second host, and end well. A spare takes the place."""
    for options, left in ((["--nnodes=2:4"], 3), (["--spares=1"], 3)):
        log = f"{folder}/lost{options[0][2:4]}.log"
        go_on = f"{log}.end"
        script = f"echo on=$SLURMD_NODENAME of=$WORLD_SIZE; until [ -e {go_on} ]; do sleep 0.1; done; echo end=$RANK"
        with open(log, "wb") as file:
            step = subprocess.Popen(["srun", "-N4", "--kill-on-bad-exit=0", "muster", "run", *options, *shell(script)[2:]],
                                    stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT)
        first = 4 if options[0] == "--nnodes=2:4" else 3
        cluster.wait_until("the first world", lambda: len(re.findall(rf"^on=n\d of={first}$", read(log), re.M)) == first)
        before = len(re.findall("^on=", read(log), re.M))
        os.kill(processes_of("muster", "n1")[0], signal.SIGKILL)
        cluster.wait_until("the second world", lambda: len(re.findall("^on=", read(log), re.M)) == before + left)
        assert len(re.findall(rf"^on=n[234] of={left}$", read(log)[read(log).index("is lost"):], re.M)) == left, read(log)
        with open(go_on, "wb"):
            pass
        step.wait(timeout=cluster.PATIENCE_S)
        assert sorted(re.findall(r"^end=(\d)$", read(log), re.M)) == list("012"), read(log)


def start_toy(folder, name, *options):
    """A job of two nodes that trains for ever. Returns it and its log, once it does."""
    log = f"{folder}/{name}.log"
    job = cluster.submit("-N2", f"--output={log}", *options, DEPLOY, *FOREVER, f"--snapshot={folder}/{name}")
    cluster.wait_until(f"epochs of {name}", lambda: os.path.exists(log) and "] epoch 2:" in read(log))
    return job, log


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def programs_of_libmuster_need_no_agent():
    """srun starts the ranks themselves: PMI passes on where they meet, else MASTER_ADDR says it."""
    four = [f"done {rank} of 4" for rank in range(4)]
    text = srun("-N2", "-n4", "--mpi=pmi2", PROGRAM, "none")
    assert sorted(re.findall(r"done \d of 4", text)) == four, text
    print("SKIPPED --mpi=pmix: the plugin starts nothing reliably over several slurmd of one machine (test_mpirun.py has PMIx)")
    text = srun("-N2", "-n4", "--mpi=none", PROGRAM, "none", code=1)
    assert "nobody says where the ranks can meet" in text and "--mpi=pmi2" in text, text
    text = srun("-N2", "-n2", "-w", "n1,n2", "sh", "-c", "test $SLURM_PROCID != 0 || echo first=$SLURMD_NODENAME")
    first = re.search(r"^first=(n\d)$", text, re.M).group(1)  # srun may say before that it waits for nodes
    text = srun("-N2", "-n4", "--mpi=none", f"--export=ALL,MASTER_ADDR={first},MASTER_PORT=29513", "-w", "n1,n2", PROGRAM, "none")
    assert sorted(re.findall(r"done \d of 4", text)) == four, text


def scancel_ends_all(folder):
    job, log = start_toy(folder, "cancelled")
    cluster.run("scancel", str(job))
    cluster.wait_until("the end of the job", lambda: cluster.state(job) == "CANCELLED")
    cluster.wait_until("the end of its processes", lambda: not processes_of("/toy") and not processes_of("muster"))
    assert "asked to stop" not in read(log), read(log)


def preemption_saves_and_the_job_goes_on(folder):
    """As Slurm does two minutes before a time limit: SIGUSR1 to the tasks of the step. The script requeues."""
    job, log = start_toy(folder, "preempted", "--export=ALL,LOGLEVEL=INFO")
    cluster.run("scancel", "--signal=USR1", str(job))
    cluster.wait_until("the requeue", lambda: "requeued, to go on" in read(log))
    epochs = set(re.findall(r"asked to stop: stopping after epoch (\d+)", read(log)))
    assert len(epochs) == 1, read(log)
    epoch = epochs.pop()
    assert "exit code 75" in read(log) and "charged" not in read(log), read(log)
    cluster.wait_until("the state of a job that waits", lambda: cluster.state(job) == "PENDING")
    # Slurm lets requeued jobs wait for two minutes. One that starts in the second in which it ended, it kills.
    cluster.run("scontrol", "update", f"JobId={job}", "StartTime=now+2")
    cluster.wait_until("the second start", lambda: f"going on from the snapshot of epoch {epoch} " in read(log))
    assert ", requeue 1:" in read(log), read(log)
    cluster.run("scancel", str(job))
    cluster.wait_until("the end of the job", lambda: cluster.state(job) == "CANCELLED")


cluster_folder = cluster.start()
for case in (no_option_is_needed, programs_of_libmuster_need_no_agent, devices_are_workers, two_steps_at_once_are_two_jobs,
             parts_of_an_allocation, mpirun_in_a_batch_script, a_failure_comes_through,
             what_cannot_be_meant_is_told, whatever_srun_starts_is_one_job, a_shell_at_a_terminal_runs_here,
             a_line_for_torchrun_means_what_it_says, the_loss_of_the_first_host_is_survived, scancel_ends_all, preemption_saves_and_the_job_goes_on):
    case(*([cluster_folder] if case.__code__.co_argcount else []))
    print(f"ok {case.__name__}", flush=True)
