#!/usr/bin/env python3
# Logits, loss and every gradient of examples/gpt against the same model in PyTorch.
# needs: torch numpy safetensors
import os
import sys
import tempfile

import trainers  # before PyTorch, which reads where its folder is to be

import safetensors.torch
import torch

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "examples", "pytorch"))
import gpt  # noqa: E402

# float32 has 6e-8; a gradient is a sum of some thousand products that both add up in another order.
TOLERANCE = 1e-5  # of the largest element


def in_pytorch(model, tokens, targets):
    logits = model(tokens)
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
    loss.backward()
    expected = {name: parameter.grad for name, parameter in model.named_parameters()}
    return dict(expected, logits=logits.detach().flatten(0, 1), loss=loss.detach())


def in_c(folder, model, tokens, targets, *options):
    inputs = dict(model.named_parameters(), tokens=tokens.int(), targets=targets.int())
    safetensors.torch.save_file({name: value.detach() for name, value in inputs.items()}, f"{folder}/inputs")
    trainers.run(0, "gpt", f"--check={folder}/inputs", f"--check-out={folder}/results", *options)
    (name,) = (name for name in os.listdir(f"{folder}/results") if name.endswith(".safetensors"))
    return safetensors.torch.load_file(f"{folder}/results/{name}")


def compare(seed, vocabulary, context, layers, heads, width, batch, tied=False, options=()):
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    model = gpt.Gpt(vocabulary, context, layers, heads, width, tied=tied, fused=False)
    with torch.no_grad():
        for parameter in model.parameters():  # larger than at first, and no bias is 0
            parameter.add_(torch.randn_like(parameter) * 0.1)
    tokens, targets = torch.randint(vocabulary, (2, batch, context))
    expected = in_pytorch(model, tokens, targets)
    with tempfile.TemporaryDirectory() as folder:
        found = in_c(folder, model, tokens, targets, f"--vocab-size={vocabulary}", f"--block-size={context}",
                     f"--n-layer={layers}", f"--n-head={heads}", f"--n-embd={width}", f"--batch={batch}",
                     *(["--tied"] if tied else []), *options)
    assert set(found) == set(expected), set(found) ^ set(expected)
    worst = 0
    for name, value in expected.items():
        assert found[name].shape == value.shape, name
        share = ((found[name] - value).abs().max() / value.abs().max()).item()
        assert share < TOLERANCE, f"{name}: {share} of its largest element"
        worst = max(worst, share)
    print(f"{len(expected)} tensors, largest difference {worst:.1e}")


def small():
    compare(1, vocabulary=11, context=8, layers=2, heads=2, width=16, batch=3)


def more_rows_than_attention_takes_at_once():
    compare(2, vocabulary=84, context=150, layers=2, heads=3, width=48, batch=2)


def odd_sizes():
    compare(3, vocabulary=7, context=65, layers=1, heads=1, width=5, batch=1)


def tied_head():
    compare(4, vocabulary=23, context=16, layers=2, heads=2, width=32, batch=2, tied=True)


def checkpointed():
    compare(5, vocabulary=23, context=70, layers=3, heads=2, width=32, batch=2, options=["--checkpoint"])


trainers.main([small, more_rows_than_attention_takes_at_once, odd_sizes, tied_head, checkpointed])
