#!/usr/bin/env python3
"""Prints optimizer_values.h: what PyTorch's optimizers make of parameters and gradients that optimizer_test.c makes, too.

Usage: optimizer_values.py | clang-format >optimizer_values.h (with PyTorch 2.13, CPU). All inputs are multiples of 1/128, exact in float32.
"""
import torch

COUNT = 24
CASES = [
    ("sgd", 1, torch.optim.SGD, dict(lr=0.1)),
    ("sgd_decay", 10, torch.optim.SGD, dict(lr=0.1, weight_decay=0.01)),
    ("sgd_momentum", 1, torch.optim.SGD, dict(lr=0.1, momentum=0.9)),
    ("sgd_momentum", 10, torch.optim.SGD, dict(lr=0.1, momentum=0.9)),
    ("sgd_damped", 10, torch.optim.SGD, dict(lr=0.05, momentum=0.8, dampening=0.3, weight_decay=0.1)),
    ("sgd_nesterov", 10, torch.optim.SGD, dict(lr=0.1, momentum=0.9, weight_decay=0.01, nesterov=True)),
    ("adadelta", 1, torch.optim.Adadelta, dict(lr=1.0)),
    ("adadelta", 30, torch.optim.Adadelta, dict(lr=1.0)),
    ("adadelta_other", 30, torch.optim.Adadelta, dict(lr=0.3, rho=0.95, eps=1e-5, weight_decay=0.05)),
    ("adam", 1, torch.optim.Adam, dict(lr=0.001)),
    ("adam", 30, torch.optim.Adam, dict(lr=0.01)),
    ("adam_other", 30, torch.optim.Adam, dict(lr=0.02, betas=(0.8, 0.95), eps=1e-6, weight_decay=0.1)),
    ("adamw", 1, torch.optim.AdamW, dict(lr=0.001)),
    ("adamw", 30, torch.optim.AdamW, dict(lr=0.01)),
    ("adamw_other", 30, torch.optim.AdamW, dict(lr=0.02, betas=(0.8, 0.95), eps=1e-6, weight_decay=0.1)),
]


def parameter():
    return torch.tensor([((i * 37 + 11) % 101 - 50) / 64 for i in range(COUNT)], dtype=torch.float32)


def gradient(step):
    return torch.tensor([((i * 53 + step * 29) % 97 - 48) / 128 for i in range(COUNT)], dtype=torch.float32)


def main():
    print("/* Recorded from PyTorch", torch.__version__.split("+")[0], "by optimizer_values.py. */")
    print("#ifndef TRAIN_OPTIMIZER_VALUES_H")
    print("#define TRAIN_OPTIMIZER_VALUES_H")
    print("/* A case, the steps taken, and the parameter's elements after them. */")
    print(f"struct recorded {{ const char *name; int steps; float values[{COUNT}]; }};")
    print("static const struct recorded recorded[] = {")
    for name, steps, kind, options in CASES:
        p = torch.nn.Parameter(parameter())
        optimizer = kind([p], **options)
        for step in range(1, steps + 1):
            p.grad = gradient(step)
            optimizer.step()
        values = ", ".join(float(value).hex() + "F" for value in p.detach())
        print(f'    {{"{name}", {steps}, {{{values}}}}},')
    print("};")
    print("#endif")


main()
