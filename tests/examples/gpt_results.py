"""What examples/gpt computes with given weights, and what PyTorch does: logits, loss and every gradient."""

import os
import sys

import trainers  # before PyTorch, which reads where its folder is to be

import safetensors.torch
import torch

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "examples", "pytorch"))
import gpt  # noqa: E402

# float32 has 6e-8; a gradient is a sum of some thousand products that both add up in another order.
TOLERANCE = 1e-5  # of the largest element


def make_model(seed, vocabulary, context, layers, heads, width, tied=False):
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    model = gpt.Gpt(vocabulary, context, layers, heads, width, tied=tied, fused=False)
    with torch.no_grad():
        for parameter in model.parameters():  # larger than at first, and no bias is 0
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


def in_pytorch(model, tokens, targets):
    logits = model(tokens)
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
    loss.backward()
    expected = {name: parameter.grad for name, parameter in model.named_parameters()}
    return dict(expected, logits=logits.detach().flatten(0, 1), loss=loss.detach())


def save(path, tensors):
    safetensors.torch.save_file({name: value.detach().contiguous() for name, value in tensors.items()}, path)


def in_c(folder, inputs, *options, expect=0):
    """inputs: tokens, targets and, if no option names another file for them, parameters. The output where it is to fail."""
    save(f"{folder}/inputs", dict(inputs, tokens=inputs["tokens"].int(), targets=inputs["targets"].int()))
    text = trainers.run(0, "gpt", f"--check={folder}/inputs", f"--check-out={folder}/results", *options, expect=expect)
    if expect:
        return text
    (name,) = (name for name in os.listdir(f"{folder}/results") if name.endswith(".safetensors"))
    return safetensors.torch.load_file(f"{folder}/results/{name}")


def compare(found, expected):
    assert set(found) == set(expected), set(found) ^ set(expected)
    worst = 0
    for name, value in expected.items():
        assert found[name].shape == value.shape, name
        share = ((found[name] - value).abs().max() / value.abs().max()).item()
        assert share < TOLERANCE, f"{name}: {share} of its largest element"
        worst = max(worst, share)
    print(f"{len(expected)} tensors, largest difference {worst:.1e}")
