"""Workers in Python that need PyTorch are forked from one process that has imported it (tests/regress/torch_template.py)."""

import os
import sys
import tempfile

import trainers

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "regress"))
import forked  # noqa: E402

# What examples/pytorch import of it, and what takes long.
MODULES = ["torch._dynamo", "torch.distributed.checkpoint.state_dict", "torch.distributed.fsdp", "torch.optim.optimizer"]
LASTING = dict(trainers.ENVIRONMENT, TORCHINDUCTOR_CACHE_DIR=trainers.FOLDER.name)  # it would be set by an import
TEMPLATE = forked.Template(sys.executable, os.path.join(os.path.dirname(sys.executable), "torchrun"), MODULES, LASTING)
# For a launcher.
ENVIRONMENT = dict(LASTING, PYTHON_EXEC=os.path.join(HERE, "forked_python"), MUSTER_TEST_TEMPLATE=TEMPLATE.address)
PATIENCE_S = 100


def become(task):
    """Exit code and output of a fork that does this (torch_template.py): {"arguments": [...]} is torchrun, {"code": "..."} a program."""
    with tempfile.TemporaryFile("w+", errors="replace", dir=trainers.FOLDER.name) as output, open(os.devnull, encoding="utf-8") as nothing:
        child = forked.Child(ENVIRONMENT["MUSTER_TEST_TEMPLATE"], dict(task, environment=ENVIRONMENT, folder=os.getcwd()), (nothing, output, output))
        child.socket.settimeout(PATIENCE_S)
        code = child.exit_code()
        output.seek(0)
        return code, output.read()
