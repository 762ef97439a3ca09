# needs: torch
"""Stop callbacks of muster.integrations, with doubles of the frameworks: one rank's launcher asks, and all ranks stop after the same step."""

import os
import sys
import tempfile
import types

import common

common.NEEDS_DYNAMO = False
import ranks  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402


class Double(types.ModuleType):
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


for name in ("transformers", "lightning", "lightning.pytorch", "lightning.pytorch.callbacks"):
    sys.modules[name] = Double(name)

from muster import integrations  # noqa: E402
from muster.integrations import accelerate, lightning, transformers  # noqa: E402

ASKED_AT = 7


def asked(rank, step):
    """Rank 1's launcher asks in the middle of a step; the others' never do."""
    path = os.path.join(os.environ["FOLDER"], f"stop{rank}")
    os.environ["MUSTER_STOP_PATH"] = path
    if rank == 1 and step == ASKED_AT:
        with open(path, "w", encoding="ascii"):
            pass


def trainer(rank, every):
    control = types.SimpleNamespace(should_save=False, should_training_stop=False)
    callback = transformers.StopCallback(every)
    for step in range(1, 50):
        asked(rank, step)
        assert callback.on_step_end(None, types.SimpleNamespace(global_step=step), control) is control
        if control.should_training_stop:
            assert control.should_save and callback.stopped
            return step
    return None


def lightnings(rank, every):
    saved = []
    trainer_ = types.SimpleNamespace(save_checkpoint=saved.append, should_stop=False)
    callback = lightning.StopCallback("a.ckpt", every)
    for step in range(1, 50):
        asked(rank, step)
        callback.on_train_batch_end(trainer_, None, None, None, step - 1)
        if trainer_.should_stop:
            callback.on_train_batch_end(trainer_, None, None, None, step)  # one more does not save again
            assert saved == ["a.ckpt"]
            return step
    return None


def accelerates(rank, every):
    accelerator = types.SimpleNamespace()
    for step in range(1, 50):
        asked(rank, step)
        if accelerate.should_stop(accelerator, every):
            return step
    return None


def compare(function, backend):
    for every, expected in ((1, ASKED_AT), (5, 10)):
        with tempfile.TemporaryDirectory(prefix="muster-stop-") as folder:
            os.environ["FOLDER"] = folder
            assert ranks.run(3, lambda rank, size: function(rank, every), backend=backend) == [expected] * 3


def test_all_stop_after_the_same_step():
    for function in (trainer, lightnings, accelerates):
        for backend in ("muster", "gloo"):
            compare(function, backend)


def alone(rank, size):
    assert not dist.is_initialized()
    os.environ.pop("MUSTER_STOP_PATH", None)
    assert not integrations.stop_agreed()
    with tempfile.NamedTemporaryFile() as file:
        os.environ["MUSTER_STOP_PATH"] = file.name
        assert integrations.stop_agreed()


def test_a_process_without_a_group():
    ranks.run(1, alone, backend=None)


def test_the_flag_is_where_the_groups_calls_take_it():
    for kinds, expected in ((["cuda"], "cuda"), (["cuda", "cpu"], "cpu"), (["xpu"], "xpu"), ([], "cpu")):
        group = types.SimpleNamespace(_device_types=[torch.device(kind) for kind in kinds])
        assert integrations._device_of(group) == expected, kinds


if __name__ == "__main__":
    ranks.main(globals())
