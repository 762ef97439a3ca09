#!/usr/bin/env python3
# PyTorch's Net reads the snapshot of examples/mnist and tells the same test images right.
# needs: torch numpy
# computes: yes
import os
import re
import sys
import tempfile
import types

import trainers  # before PyTorch, which reads where its folder is to be

import numpy
import torch

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "examples", "pytorch"))
sys.modules["group"] = types.ModuleType("group")  # takes long to import, and only its main() needs it
import mnist_ddp  # noqa: E402


def main():
    with tempfile.TemporaryDirectory() as folder:
        text = trainers.run(2, "mnist", "--epochs=2", f"--snapshot={folder}", trainers.small_data(folder, 1000))
        tensors = trainers.snapshot(folder)
    ours = float(re.search(r"final test accuracy: ([\d.]+) %", text).group(1))
    net = mnist_ddp.Net()
    state = {name: torch.from_numpy(numpy.frombuffer(tensors[name], numpy.float32).copy()).reshape(value.shape)
             for name, value in net.state_dict().items() if name in tensors}
    left_out = set(net.state_dict()) - set(state)
    assert left_out == {"norm1.num_batches_tracked", "norm2.num_batches_tracked"}, left_out
    net.load_state_dict(state, strict=False)
    net.eval()
    _, test_set = mnist_ddp.load_idx(mnist_ddp.DATA)
    with torch.no_grad():
        images, labels = test_set.tensors
        theirs = 100 * (net(images).argmax(1) == labels).double().mean().item()
    print(f"{ours:.2f} % in C, {theirs:.2f} % in PyTorch")
    # One image of the 1,000 may lie between two digits to within a rounding.
    assert abs(ours - theirs) < 0.11


main()
