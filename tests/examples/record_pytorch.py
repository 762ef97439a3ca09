#!/usr/bin/env python3
"""Records what PyTorch computes for the layers of examples/mnist, for mnist_pytorch_test.c to compare with.

    tests/examples/record_pytorch.py > tests/examples/pytorch_values.txt

Inputs are not recorded: both sides draw them from splitmix64, from a seed that is the number of the tensor. Of long
tensors every STRIDE-th element is recorded. A line: NAME STRIDE COUNT VALUE..., values in hexadecimal floating point.
Needs PyTorch; made with 2.13.0 for CPUs. The result is in the repository; nothing else runs this script.
"""

import os
import sys

import numpy
import torch
import torch.nn.functional as functional

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "examples", "pytorch"))
import mnist_ddp  # noqa: E402 (its Net is the one to agree with)

RECORDED_MAX = 64


def draw(seed, *shape):
    """Uniform in [-1, 1), 24 bits: what net.c's random_uniform() gives with a bound of 1."""
    count = int(numpy.prod(shape))
    with numpy.errstate(over="ignore"):
        z = numpy.uint64(seed) + numpy.uint64(0x9E3779B97F4A7C15) * numpy.arange(1, count + 1, dtype=numpy.uint64)
        z = (z ^ (z >> numpy.uint64(30))) * numpy.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> numpy.uint64(27))) * numpy.uint64(0x94D049BB133111EB)
        z = z ^ (z >> numpy.uint64(31))
    values = (z >> numpy.uint64(40)).astype(numpy.float64) / (1 << 23) - 1
    return torch.from_numpy(values.astype(numpy.float32)).reshape(shape)


def record(name, tensor):
    values = tensor.detach().contiguous().reshape(-1)
    stride = max(1, -(-len(values) // RECORDED_MAX))
    if stride % 2 == 0:
        stride += 1  # so that all channels get their turn
    chosen = values[::stride].double().tolist()
    print(name, stride, len(values), *[value.hex() for value in chosen])


def nhwc(tensor):
    return tensor.permute(0, 2, 3, 1)


def conv(name, batch, inputs, outputs, side):
    x = draw(1, batch, inputs, side, side).requires_grad_()
    weight = draw(2, outputs, inputs, 3, 3).requires_grad_()
    bias = draw(3, outputs).requires_grad_()
    y = functional.conv2d(x, weight, bias)
    y.backward(draw(4, *y.shape))
    record(f"{name}.y", nhwc(y))
    record(f"{name}.dx", nhwc(x.grad))
    record(f"{name}.dweight", weight.grad)
    record(f"{name}.dbias", bias.grad)


def norm_pool(name, batch, side, channels, normalise):
    x = draw(1, batch, channels, side, side).requires_grad_()
    norm = torch.nn.BatchNorm2d(channels)
    with torch.no_grad():
        norm.weight.copy_(draw(2, channels))  # negative ones, too
        norm.bias.copy_(draw(3, channels))
    y = functional.max_pool2d(functional.relu(norm(x) if normalise else x), 2)
    y.backward(draw(4, *y.shape))
    record(f"{name}.y", nhwc(y))
    record(f"{name}.dx", nhwc(x.grad))
    if normalise:
        record(f"{name}.dgamma", norm.weight.grad)
        record(f"{name}.dbeta", norm.bias.grad)
        record(f"{name}.running_mean", norm.running_mean)
        record(f"{name}.running_variance", norm.running_var)
        norm.eval()
        record(f"{name}.tested", nhwc(functional.max_pool2d(functional.relu(norm(x)), 2)))


def net(name, normalise):
    model = mnist_ddp.Net()
    if not normalise:
        model.norm1 = model.norm2 = torch.nn.Identity()
    with torch.no_grad():
        # As net_create(seed 7) draws them: weight and bias of conv1, conv2, dense1, dense2, one after the other.
        stream = draw(7, sum(parameter.numel() for name, parameter in model.named_parameters() if "norm" not in name))
        begin = 0
        for layer in (model.conv1, model.conv2, model.dense1, model.dense2):
            bound = (layer.weight[0].numel()) ** -0.5
            for parameter in (layer.weight, layer.bias):
                values = stream[begin:begin + parameter.numel()].double() * bound
                parameter.copy_(values.float().reshape(parameter.shape))
                begin += parameter.numel()
    images, labels = draw(8, 6, 1, 28, 28), torch.tensor([3, 1, 4, 1, 5, 9])
    logits = model(images)
    loss = functional.cross_entropy(logits, labels)
    loss.backward()
    record(f"{name}.logits", logits)
    record(f"{name}.loss", loss)
    for parameter_name, parameter in model.named_parameters():
        record(f"{name}.{parameter_name}", parameter.grad)
    for buffer_name, buffer in model.named_buffers():
        if "running" in buffer_name:
            record(f"{name}.{buffer_name}", buffer)
    model.eval()
    record(f"{name}.tested", model(images))


def main():
    print(f"# PyTorch {torch.__version__.split('+')[0]}; made by record_pytorch.py")
    conv("conv_small", 2, 2, 3, 6)
    conv("conv_wide", 3, 32, 64, 13)
    norm_pool("norm_pool_odd", 3, 5, 32, True)
    norm_pool("norm_pool_even", 2, 6, 64, True)
    norm_pool("pool_alone", 2, 5, 32, False)
    net("net", True)
    net("net_without_norm", False)


if __name__ == "__main__":
    main()
