#!/usr/bin/env python3
# Weights go from PyTorch to examples/gpt and back: under minGPT's names and under those of Hugging Face's GPT-2, whose matrices are turned.
# With the same weights both train and write alike.
# needs: torch numpy safetensors
# computes: yes
import glob
import importlib.util
import os
import re
import subprocess
import sys
import tempfile

import trainers
import gpt_results

import torch

VOCABULARY, CONTEXT, LAYERS, HEADS, WIDTH, BATCH = 23, 16, 2, 2, 32, 2
SHAPE = [f"--block-size={CONTEXT}", f"--n-layer={LAYERS}", f"--n-head={HEADS}", f"--n-embd={WIDTH}", f"--batch={BATCH}"]
CONV1D = ("c_attn.weight", "c_proj.weight", "c_fc.weight")
TRAINER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "examples", "pytorch", "gpt_train.py")


def make(tied, seed=1):
    """A model, and a batch."""
    model = gpt_results.make_model(seed, VOCABULARY, CONTEXT, LAYERS, HEADS, WIDTH, tied)
    tokens, targets = torch.randint(VOCABULARY, (2, BATCH, CONTEXT))
    return model, {"tokens": tokens, "targets": targets}


def as_gpt2(model, prefix):
    """The tensors as Hugging Face's GPT-2 has them, masks included."""
    tensors = {}
    for name, value in model.named_parameters():
        tensors[prefix + name.removeprefix("transformer.")] = value.t() if name.endswith(CONV1D) else value
    for layer in range(LAYERS):
        tensors[f"{prefix}h.{layer}.attn.bias"] = torch.ones(CONTEXT, CONTEXT).tril().view(1, 1, CONTEXT, CONTEXT)
        tensors[f"{prefix}h.{layer}.attn.masked_bias"] = torch.tensor(-1e4)
    return tensors


def in_c(tensors, batch, *options, expect=0):
    with tempfile.TemporaryDirectory() as folder:
        gpt_results.save(f"{folder}/weights", tensors)
        return gpt_results.in_c(folder, batch, f"--weights={folder}/weights", f"--vocab-size={VOCABULARY}", *SHAPE, *options,
                                expect=expect)


def under_mingpt_names():
    for tied in (False, True):
        model, batch = make(tied)
        found = in_c(dict(model.named_parameters()), batch, *(["--tied"] if tied else []))
        gpt_results.compare(found, gpt_results.in_pytorch(model, **batch))


def under_gpt2_names():
    model, batch = make(tied=True)
    expected = gpt_results.in_pytorch(model, **batch)
    for prefix in ("transformer.", ""):
        gpt_results.compare(in_c(as_gpt2(model, prefix), batch, "--tied"), expected)
    head = {"lm_head.weight": model.lm_head.weight.clone()}  # some files have it a second time
    gpt_results.compare(in_c(dict(as_gpt2(model, "transformer."), **head), batch, "--tied"), expected)


def from_transformers():
    if importlib.util.find_spec("transformers") is None:
        print("the package transformers is not installed: GPT-2's tensors were made by hand alone")
        return
    from transformers import GPT2Config, GPT2LMHeadModel
    model = GPT2LMHeadModel(GPT2Config(vocab_size=VOCABULARY, n_positions=CONTEXT, n_embd=WIDTH, n_layer=LAYERS, n_head=HEADS,
                                       resid_pdrop=0, embd_pdrop=0, attn_pdrop=0))
    batch = make(tied=True)[1]
    logits = model(batch["tokens"]).logits
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch["targets"].flatten())
    loss.backward()
    expected = {name: value.grad.t() if name.endswith(CONV1D) else value.grad for name, value in model.named_parameters()}
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        found = gpt_results.in_c(folder, batch, f"--weights={folder}/model.safetensors", f"--vocab-size={VOCABULARY}", *SHAPE,
                                 "--tied")
    gpt_results.compare(found, dict(expected, logits=logits.detach().flatten(0, 1), loss=loss.detach()))


def in_two_bytes():
    """A step at the rate 0 saves the weights as they were read."""
    context, width = 1024, 64
    every = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16)
    numbers = {torch.float16: every.view(torch.float16), torch.bfloat16: torch.randn(1 << 16).to(torch.bfloat16)}
    for kind, values in numbers.items():
        values = torch.where(values.isfinite(), values, 1).view(context, width)  # of float16: all that are finite, subnormal ones too
        model = gpt_results.make_model(2, 67, context, 1, 1, width, tied=True)
        tensors = {name: value.detach().to(kind) for name, value in model.named_parameters()}
        tensors["transformer.wpe.weight"] = values
        with tempfile.TemporaryDirectory() as folder:
            gpt_results.save(f"{folder}/weights", tensors)
            trainers.run(0, "gpt", f"--block-size={context}", "--n-layer=1", "--n-head=1", f"--n-embd={width}", "--tied", "--batch=1",
                         "--steps=1", "--lr=0", "--sample=0", f"--weights={folder}/weights", f"--snapshot={folder}/saved")
            saved = trainers.snapshot(f"{folder}/saved")
        for name, value in tensors.items():
            assert torch.equal(torch.frombuffer(bytearray(saved[name]), dtype=torch.float32), value.float().flatten()), name


def what_does_not_fit_is_named():
    def refused(tensors, *options):
        return in_c(tensors, batch, *options, expect=1)

    model, batch = make(tied=False)
    tensors = dict(model.named_parameters())
    gpt2 = as_gpt2(make(tied=True)[0], "")
    text = refused({name: value for name, value in tensors.items() if name != "transformer.h.1.mlp.c_fc.bias"})
    assert "tensor transformer.h.1.mlp.c_fc.bias is not in the file" in text, text
    text = refused(dict(tensors, **{"transformer.ln_f.weight": torch.ones(WIDTH + 1)}))
    assert "transformer.ln_f.weight is float32 [33] in the file, float32 [32] in the program" in text, text
    text = refused(dict(gpt2, **{"h.0.mlp.c_proj.bias": torch.ones(3)}), "--tied")
    assert "h.0.mlp.c_proj.bias is float32 [3] in the file, float32 [32] in the program" in text, text
    text = refused(gpt2)
    assert "lm_head.weight is not in the file; is its head the token embedding (--tied)?" in text, text
    text = refused(tensors, "--tied")
    assert "lm_head.weight is not transformer.wte.weight" in text, text
    text = trainers.run(0, "gpt", "--weights=/nowhere/x", expect=1)
    assert "cannot read the weights" in text and "/nowhere" in text, text


SMALL = [*SHAPE, "--steps=12", "--warm-up=4", "--lr=0.01", "--dropout=0", "--report-every=1", "--evaluate-every=6"]


def losses(text):
    found = re.findall(r"^step (\d+(?:/\d+)?: .*?loss )([\d.]+)", text, re.MULTILINE)
    return [what for what, _ in found], [float(loss) for _, loss in found]


def snapshots_are_read_by_pytorch():
    with tempfile.TemporaryDirectory() as folder:
        trainers.run(0, "gpt", *SHAPE, "--steps=3", "--sample=0", f"--snapshot={folder}")
        (path,) = glob.glob(f"{folder}/step-3-*.safetensors")
        model = gpt_results.gpt.Gpt(67, CONTEXT, LAYERS, HEADS, WIDTH, fused=False)
        gpt_results.gpt.load_weights(model, path)
        batch = {name: torch.randint(67, (BATCH, CONTEXT)) for name in ("tokens", "targets")}
        found = gpt_results.in_c(folder, batch, f"--weights={path}", "--vocab-size=67", *SHAPE)
        gpt_results.compare(found, gpt_results.in_pytorch(model, **batch))


def and_both_train_alike_from_there():
    """And write the same text."""
    with tempfile.TemporaryDirectory() as folder:
        trainers.run(0, "gpt", *SHAPE, "--steps=3", "--sample=0", f"--snapshot={folder}")
        (path,) = glob.glob(f"{folder}/step-3-*.safetensors")
        in_c = trainers.run(0, "gpt", *SMALL, "--sample=40", f"--weights={path}")
        in_pytorch = subprocess.run([sys.executable, TRAINER, *SMALL, "--sample=40", f"--weights={path}"], text=True, check=True,
                                    env=trainers.ENVIRONMENT, stdout=subprocess.PIPE, timeout=100).stdout
        (lines, one), (others, other) = losses(in_c), losses(in_pytorch)
        assert len(lines) == 14 and lines == others, f"{in_c}\n{in_pytorch}"
        assert one[0] - one[11] > 0.3 and max(abs(a - b) for a, b in zip(one, other)) < 2e-4, f"{one}\n{other}"  # of 4 digits
        assert in_c[-40:] == in_pytorch[-40:], f"{in_c}\n{in_pytorch}"


def are_enough_to_write():
    with tempfile.TemporaryDirectory() as folder:
        trainers.run(0, "gpt", *SHAPE, "--steps=3", "--sample=0", f"--snapshot={folder}")
        (path,) = glob.glob(f"{folder}/step-3-*.safetensors")
        one, other = (trainers.run(0, "gpt", "--sample-only", "--sample=40", "--prompt=KING ", *options)
                      for options in ([f"--snapshot={folder}"], [f"--weights={path}", *SHAPE]))
        assert one == other and one.startswith("KING "), f"{one}\n{other}"


trainers.main([under_mingpt_names, under_gpt2_names, from_transformers, in_two_bytes, what_does_not_fit_is_named,
               snapshots_are_read_by_pytorch, and_both_train_alike_from_there, are_enough_to_write])
