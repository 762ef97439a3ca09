#!/usr/bin/env python3
# docs/schedulers.md's lines for PyTorch: gloo workers of two nodes stop after the same step, and the launchers end with 75.
# needs: torch
import os
import re
import select
import signal
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "regress"))
import jobs  # noqa: E402

MUSTER = os.environ["MUSTER_BINARY"]
PAGE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "docs", "schedulers.md")
FORKED_PYTHON = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "examples", "forked_python")
PREEMPTED = 75
PATIENCE_S = 90
SCRIPT = """import os
import sys
import torch

device = "cpu"
torch.distributed.init_process_group("gloo")
rank = torch.distributed.get_rank()
step = 0


def save_snapshot():
    print(f"rank {rank} saves after step {step}.", flush=True)


while True:
    step += 1
    loss = torch.ones(1)
    torch.distributed.all_reduce(loss)
    if step == 10:
        print(f"rank {rank} trains", flush=True)
"""


def recipe():
    with open(PAGE, encoding="utf-8") as file:
        (lines,) = re.findall(r"```python\n(.*?)```", file.read(), re.S)
    return "".join(f"    {line}\n" for line in lines.splitlines())


def read_until(agents, texts, test):
    """Reads from all until test(texts), or all have ended."""
    open_ends = {agent.stdout.fileno(): i for i, agent in enumerate(agents)}
    while open_ends and not test(texts):
        ready, _, _ = select.select(open_ends, [], [], PATIENCE_S)
        assert ready, "\n".join(texts)
        for end in ready:
            piece = os.read(end, 1 << 16)
            texts[open_ends[end]] += piece.decode(errors="replace")
            if not piece:
                del open_ends[end]


jobs.isolate()  # where it can be had: so that no port is taken by a stranger
with tempfile.TemporaryDirectory() as folder:
    with open(f"{folder}/train.py", "w", encoding="utf-8") as file:
        file.write(SCRIPT + recipe())
    command = [MUSTER, "run", "--nnodes=2", "--nproc-per-node=2", "--rdzv-backend=muster",
               f"--rdzv-endpoint=127.0.0.1:{jobs.free_port()}", "--rdzv-id=recipe", "--local-addr=127.0.0.1",
               "--log-dir=/dev/null", "--preempt-signal=SIGUSR1", "--preempt-grace=80", f"{folder}/train.py"]
    # The workers are forks of one process that has imported PyTorch.
    environment = dict(os.environ, OMP_NUM_THREADS="1", PYTHON_EXEC=FORKED_PYTHON, MUSTER_TEST_TEMPLATE=jobs.torch_template(dict(os.environ)))
    nodes = [subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT) for _ in range(2)]
    said = ["", ""]
    try:
        read_until(nodes, said, lambda texts: all(text.count("trains") == 2 for text in texts))
        nodes[0].send_signal(signal.SIGUSR1)
        read_until(nodes, said, lambda texts: False)
        codes = [node.wait(timeout=PATIENCE_S) for node in nodes]
    finally:
        for node in nodes:
            node.kill()
    assert codes == [PREEMPTED, PREEMPTED], (codes, said)
    saved = re.findall(r"rank (\d) saves after step (\d+)\.", "".join(said))
    assert sorted(rank for rank, _ in saved) == list("0123") and len({step for _, step in saved}) == 1, said
    assert "did not exit with 0" not in "".join(said), said
print("ok")
