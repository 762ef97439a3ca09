#!/usr/bin/env python3
# The examples in deploy/: the Kubernetes manifest is read, and four agents run as its pods would; the systemd unit is
# verified and its environment used. (The sbatch file is run by test_slurm.py.)
# needs: yaml
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys

import yaml

import namespace

BINARY = os.environ["MUSTER_BINARY"]
DEPLOY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "deploy")
SHOW = ["--log-dir=/dev/null", "--no-python", "sh", "-c", "echo rank=$RANK of=$WORLD_SIZE run=$TORCHELASTIC_RUN_ID"]
PATIENCE_S = 60


def read(*path):
    with open(os.path.join(DEPLOY, *path), encoding="utf-8") as file:
        return file.read()


def run_all(environments):
    """An agent with each of these variables, and nothing else but PATH; their outputs."""
    agents = [subprocess.Popen([BINARY, "run", *SHOW], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, text=True,
                               env={"PATH": os.environ["PATH"], "OMP_NUM_THREADS": "1", "LOGLEVEL": "INFO", **more})
              for more in environments]
    try:
        outputs = [agent.communicate(timeout=PATIENCE_S)[0] for agent in agents]
    finally:
        for agent in agents:
            agent.kill()
    for agent, output in zip(agents, outputs):
        assert agent.returncode == 0, f"exit code {agent.returncode}\n{output}"
    return outputs


def who_waits_for_nobody_is_told_why():
    """Variables of a whole job in a pod where one agent alone is meant: nobody can tell, so it waits, and says for what."""
    environment = {"PATH": os.environ["PATH"], "KUBERNETES_SERVICE_HOST": "10.96.0.1", "MASTER_ADDR": "master.invalid",
                   "WORLD_SIZE": "2", "RANK": "1"}
    with subprocess.Popen([BINARY, "run", *SHOW], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                          text=True, env=environment) as agent:
        line = next((line for line in agent.stderr if "this agent waits for others" in line), "")
        agent.terminate()
        agent.stderr.read()
    assert "since WORLD_SIZE=2 says" in line and "--nnodes=1" in line, line


def pods_of_the_manifest_form_one_job(manifest):
    service, job = manifest
    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    variables = {entry["name"]: entry["value"] for entry in container["env"]}
    assert all(isinstance(value, str) for value in variables.values()), variables
    assert service["metadata"]["name"] == pod["subdomain"] == variables["MUSTER_SERVICE"]
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["selector"] == {"job-name": job["metadata"]["name"]}
    assert job["spec"]["completionMode"] == "Indexed" and pod["restartPolicy"] == "Never"
    assert job["spec"]["completions"] == job["spec"]["parallelism"] == int(variables["PET_NNODES"])
    assert int(variables["MUSTER_PREEMPT_GRACE"]) < pod["terminationGracePeriodSeconds"]
    rules = job["spec"]["podFailurePolicy"]["rules"]
    assert [75] in [rule["onExitCodes"]["values"] for rule in rules if "onExitCodes" in rule], rules
    assert container["command"][:2] == ["muster", "run"], container
    name = job["metadata"]["name"]
    variables.update(KUBERNETES_SERVICE_HOST="10.96.0.1", PET_NPROC_PER_NODE="2")  # no GPUs here
    outputs = run_all({**variables, "JOB_COMPLETION_INDEX": str(i), "HOSTNAME": f"{name}-{i}"} for i in range(4))
    found = sorted(int(rank) for output in outputs for rank in re.findall(rf"rank=(\d) of=8 run={name}\n", output))
    assert found == list(range(8)), "\n".join(outputs)
    places = ",".join(f"{name}-{i}.{variables['MUSTER_SERVICE']}" for i in range(3))
    assert f"--rdzv-endpoint={places}" in outputs[2], outputs[2]
    alone = subprocess.run([BINARY, "run", "--nnodes=1", *SHOW], capture_output=True, text=True, timeout=PATIENCE_S,
                           env={**variables, "PATH": os.environ["PATH"], "JOB_COMPLETION_INDEX": "1", "HOSTNAME": f"{name}-1"},
                           check=False)
    assert alone.returncode == 0 and "--nnodes says that a job has one node" in alone.stderr, alone.stderr


def environment_file():
    lines = [line for line in read("systemd", "train.env").splitlines() if line and not line.startswith("#")]
    return dict(line.split("=", 1) for line in lines)


def unit_of_a_fleet_is_whole(folder):
    unit = read("systemd", "muster@.service")
    command = shlex.split(re.search("^ExecStart=(.*)$", unit, re.M)[1])
    assert command[1:] == ["run", "$MUSTER_SCRIPT"], command
    grace = int(environment_file()["MUSTER_PREEMPT_GRACE"])
    assert grace < int(re.search(r"^TimeoutStopSec=(\d+)$", unit, re.M)[1])
    assert f"KillSignal={environment_file()['MUSTER_PREEMPT_SIGNAL']}" in unit and "RestartForceExitStatus=75" in unit
    if shutil.which("systemd-analyze") is None:
        print("SKIPPED unit_is_verified: systemd-analyze is not installed")
        return
    with open(f"{folder}/muster@.service", "w", encoding="utf-8") as file:
        file.write(unit.replace(command[0], BINARY))
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", f"{folder}/muster@train.service"], text=True,
                          capture_output=True, timeout=PATIENCE_S, check=False)
    if "Failed to" in done.stderr and "muster" not in done.stderr:
        print(f"SKIPPED unit_is_verified: {done.stderr.strip()}")
        return
    assert done.returncode == 0 and "muster" not in done.stderr, done.stderr


def machines_of_the_fleet_form_one_job():
    variables = environment_file()
    del variables["MUSTER_SCRIPT"]
    variables["PET_NPROC_PER_NODE"] = "1"
    variables["PET_NNODES"] = "4"  # all are there: no last call
    outputs = run_all([variables] * 4)
    found = sorted(rank for output in outputs for rank in re.findall(r"rank=(\d) of=4 run=train", output))
    assert found == list("0123"), "\n".join(outputs)


pods = list(yaml.safe_load_all(read("kubernetes", "train.yaml")))
place = namespace.enter({socket.gethostname(): 1, **{f"train-{i}.train": 1 + i for i in range(3)},
                         **{f"node{i}.example.org": i for i in (1, 2, 3)}})
who_waits_for_nobody_is_told_why()
pods_of_the_manifest_form_one_job(pods)
unit_of_a_fleet_is_whole(place)
machines_of_the_fleet_form_one_job()
print("ok")
sys.exit(0)
