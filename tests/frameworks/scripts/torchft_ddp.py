"""torchft: two replica groups of one worker each; the one that dies takes the live one's state over, without a checkpoint.

The quorum is of both, so that the survivor waits, and the result is an undisturbed run's. REPLICA_GROUP_ID says which group this is.
"""

import os
from datetime import timedelta

import torch
import torchft
from torch.utils.data import DataLoader, Subset

import common

replica = int(os.environ["REPLICA_GROUP_ID"])
net = common.model()
adam = torch.optim.AdamW(net.parameters(), lr=1e-2)


def load(state):
    net.load_state_dict(state["model"])
    adam.load_state_dict(state["optimizer"])


group = torchft.ProcessGroupGloo(timeout=timedelta(seconds=20))
manager = torchft.Manager(pg=group, min_replica_size=2, load_state_dict=load, replica_id=f"replica_{replica}", timeout=timedelta(seconds=20),
                          state_dict=lambda: {"model": net.state_dict(), "optimizer": adam.state_dict()})
model = torchft.DistributedDataParallel(manager, net)
optimizer = torchft.Optimizer(manager, adam)
data = common.dataset()
batches = list(DataLoader(Subset(data, range(replica, len(data), 2)), batch_size=common.BATCH))

while manager.current_step() < common.STEPS:
    before = manager.current_step()
    optimizer.zero_grad()  # the quorum
    inputs, targets = batches[manager.current_step() % len(batches)]
    torch.nn.functional.mse_loss(model(inputs), targets).backward()
    optimizer.step()  # if all could be added up; else the step is done again
    after = manager.current_step()
    if after > before + 1:
        common.resumed(after - 1, replica)
    if after > before:
        common.step_done(after, replica)
common.finished(net.parameters(), common.backend_of(group.parent), replica)
manager.shutdown()
