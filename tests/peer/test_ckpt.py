#!/usr/bin/env python3
# muster ckpt ls, show, verify, diff, export, prune: of Muster's own checkpoints and snapshots, and of what others have saved.
# needs: torch safetensors numpy
"""Usage: test_ckpt.py [CASE ...] (most need the first two before them); MUSTER_BINARY names the program. snapshot_peer, in tests/ beside it, saves
the states of step 7.
"""
import glob
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import safetensors
import safetensors.torch
import torch

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import cases  # noqa: E402

BINARY = os.environ["MUSTER_BINARY"]
PEER = os.path.join(os.path.dirname(BINARY), "tests", "snapshot_peer")
# Every second one is cut among the ranks. Bytes count up, from the tensor's number.
TENSORS = ["layer.0.weight:7:7x3", "layer.0.bias:7:3", "layer.1.weight:8:5x5x2", "layer.1.bias:8:1", "head:0:11", "none:7:0x4"]
TYPES = {"7": torch.float32, "8": torch.float64, "0": torch.int8}


def ckpt(*arguments, expect=0):
    done = subprocess.run([BINARY, "ckpt", *arguments], capture_output=True, text=True, timeout=100, check=False)
    assert "\x1b" not in done.stderr + done.stdout, (arguments, done)
    assert done.returncode == expect, (arguments, done)
    return done.stdout if expect == 0 else done.stdout + done.stderr


def save(folder, kind="checkpoint", ranks=3, step=7):
    command = [BINARY, "run", "--standalone", f"--nproc-per-node={ranks}", "--no-python"] if kind == "checkpoint" else []
    subprocess.run([*command, PEER, kind, folder, *TENSORS], check=True, env={**os.environ, "OMP_NUM_THREADS": "1", "STEP": str(step)})


def expected():
    states = {}
    for index, text in enumerate(TENSORS):
        name, number, shape = text.split(":")
        sizes = [int(size) for size in shape.split("x")]
        count = torch.Size(sizes).numel() * torch.empty(0, dtype=TYPES[number]).element_size()
        content = bytearray((index + i) % 256 for i in range(count))
        states[name] = torch.frombuffer(content, dtype=TYPES[number]).reshape(sizes) if count else torch.empty(sizes, dtype=TYPES[number])
    return states


def same(one, other):
    return one.dtype == other.dtype and one.shape == other.shape and bytes(one.contiguous().view(torch.uint8).numpy() if one.numel() else b"") == \
        bytes(other.contiguous().view(torch.uint8).numpy() if other.numel() else b"")


def check_state(got, want):
    assert got.keys() == want.keys(), (got.keys(), want.keys())
    for name, tensor in want.items():
        assert same(got[name], tensor), name


def flip(path, back):
    with open(path, "r+b") as file:
        file.seek(-back, os.SEEK_END)
        byte = file.read(1)
        file.seek(-back, os.SEEK_END)
        file.write(bytes([byte[0] ^ 1]))


# ---- looking ----

def what_is_there_is_listed():
    save("steps")
    save("steps", "save")
    shutil.copy("steps/checkpoint-7.json", "steps/checkpoint-9.json")
    open("steps/checkpoint-8-0123456789abcdef-0.safetensors", "w", encoding="ascii").close()
    lines = ckpt("ls", "steps").splitlines()
    assert "step 9: checkpoint, steps/checkpoint-9.json is the record of step 7" in lines, lines
    assert "step 8: checkpoint, its save was cut off" in lines, lines
    assert any(line.startswith("step 7: checkpoint, 3 parts, ") for line in lines), lines
    assert any(line.startswith("step 7: snapshot, ") for line in lines), lines
    os.makedirs("empty")
    assert "no checkpoint and no snapshot in empty" in ckpt("ls", "empty", expect=1)
    assert "No such file" in ckpt("ls", "nowhere", expect=1)


def every_kind_is_shown_alike():
    save("own")
    save("whole", "save")
    safetensors.torch.save_file(expected(), "foreign.safetensors")
    listings = []
    for source in ("own", glob.glob("own/checkpoint-7.json")[0], "whole", "whole/step-7.json", "foreign.safetensors"):
        shown = json.loads(ckpt("show", "--json", source))
        listings.append(shown["tensors"])
        assert shown["step"] == (-1 if source.startswith("foreign") else 7), shown
    assert all(listing == listings[0] for listing in listings), listings
    assert "step 7 of a checkpoint: 6 tensors" in ckpt("show", "own")
    assert "step 7 of a checkpoint: 2 tensors" in ckpt("show", "own", "--only", "layer.0")
    assert "layer.1.weight: float64 [5, 5, 2], 400 bytes\n" in ckpt("show", "own")


def damage_is_named():
    save("damaged")
    assert ckpt("verify", "damaged").startswith("checkpoint of step 7: whole, ")
    [part] = glob.glob("damaged/checkpoint-7-*-1.safetensors")
    flip(part, 100)
    assert "is damaged" in ckpt("export", "damaged", "--to", "damaged.safetensors", expect=1)
    [lost] = glob.glob("damaged/checkpoint-7-*-2.safetensors")
    os.unlink(lost)
    text = ckpt("verify", "damaged", expect=1)
    assert f"in {part} is damaged: a checksum does not fit" in text and lost in text, text
    assert text.endswith("checkpoint of step 7: damaged, in 2 places\n"), text
    assert lost in ckpt("export", "damaged", "--to", "damaged.safetensors", expect=1)
    assert not glob.glob("damaged.safetensors*")
    shutil.copytree("damaged", "dam\naged")
    text = ckpt("verify", "dam\naged", expect=1)
    assert "dam?aged" in text and "dam\naged" not in text, text
    save("broken", "save")
    [data] = glob.glob("broken/step-7-*.safetensors")
    flip(data, 3)
    text = ckpt("verify", "broken", expect=1)
    assert f"{data}" in text and "tensor " in text, text
    assert ckpt("show", "broken")
    [file] = glob.glob("whole/step-7-*.safetensors")
    assert ckpt("verify", "whole").startswith("snapshot of step 7: whole, ")
    assert ckpt("verify", file).startswith("safetensors file: whole, ")


def the_newest_is_agreed_on():
    """A newer save that cannot be read is named by all verbs; one that is all there is, too."""
    for kind, files in (("checkpoint", "checkpoint-{}-*"), ("save", "step-{}-*")):
        folder = f"newest-{kind}"
        record = f"{folder}/{files.split('{')[0]}{{}}.json"
        what = "checkpoint" if kind == "checkpoint" else "snapshot"
        for step in (5, 6, 7):
            save(folder, kind, step=step)
            shutil.copytree(folder, "all", dirs_exist_ok=True)  # a save keeps two
        shutil.rmtree(folder)
        os.rename("all", folder)
        flip(record.format(7), 20)
        os.unlink(record.format(6))
        notes = [f"step 7: {record.format(7)}", "step 6: its save was cut off"]
        text = ckpt("verify", folder, expect=1)
        assert all(note in text for note in notes) and f"{what} of step 5: damaged, in 2 places" in text, text
        lines = ckpt("ls", folder).splitlines()
        assert lines[0].startswith(f"step 7: {what}, {record.format(7)}") and "is damaged" in lines[0] and lines[1] == f"step 6: {what}, its save was cut off", lines
        for verb, *more in (("export", "--to", f"{folder}.safetensors"), ("show",), ("diff", "own"), ("import", "--to", f"{folder}-new")):
            done = subprocess.run([BINARY, "ckpt", verb, folder, *more], capture_output=True, text=True, timeout=100, check=False)
            assert all(note in done.stderr for note in notes) and done.stderr.count("passed over step ") == 2 and "step 5 is taken" in done.stderr, (verb, done)
            assert done.returncode in ((0, 1) if verb == "diff" else (0,)), (verb, done)
        assert ckpt("verify", record.format(5)).startswith(f"{what} of step 5: whole")
        flip(record.format(5), 20)
        for verb, *more in (("verify",), ("export", "--to", "no.safetensors"), ("show",), ("diff", "own")):
            text = ckpt(verb, folder, *more, expect=2 if verb == "diff" else 1)
            assert f"nothing in {folder} can be read" in text and "step 5: " in text and all(note in text for note in notes), (verb, text)
    # Of both kinds it is the newer one.
    shutil.copytree("own", "kinds")
    save("kinds", "save", step=9)
    assert ckpt("verify", "kinds").startswith("snapshot of step 9: whole")
    flip("kinds/step-9.json", 20)
    text = ckpt("verify", "kinds", expect=1)
    assert "step 9: kinds/step-9.json" in text and "checkpoint of step 7: damaged, in 1 place\n" in text, text


def differences_are_told():
    values = ("accuracy", "epoch", "note")
    assert sorted(ckpt("diff", "own", "whole", expect=1).splitlines()) == [f"{name}: only the second has this value" for name in values]
    assert ckpt("diff", "own", "whole", *(word for name in values for word in ("--skip", name))) == ""
    assert ckpt("diff", "own", "foreign.safetensors") == ""
    other = expected()
    other["layer.0.weight"] = other["layer.0.weight"].clone()
    other["layer.0.weight"][2, 1] += 0.5
    other["head"] = other["head"].reshape(1, 11)
    del other["layer.1.bias"]
    other["new"] = torch.zeros(2)
    safetensors.torch.save_file(other, "other.safetensors")
    lines = ckpt("diff", "own", "other.safetensors", expect=1).splitlines()
    assert lines == ["head: int8 [11] and int8 [1, 11]", "layer.0.weight: 1 of 21 elements differ, by 0.5 at most",
                     "layer.1.bias: only the first has this tensor", "new: only the second has this tensor"], lines
    assert ckpt("diff", "own", "other.safetensors", "--only", "layer.1.weight") == ""
    assert "nowhere" in ckpt("diff", "own", "nowhere", expect=2)


# ---- exporting ----

def others_read_what_is_exported():
    for source in ("own", "whole"):
        ckpt("export", source, "--to", f"{source}.safetensors")
        check_state(safetensors.torch.load_file(f"{source}.safetensors"), expected())
        with safetensors.safe_open(f"{source}.safetensors", "pt") as file:
            assert file.metadata() == {"format": "pt"}
        ckpt("export", source, "--to", f"{source}-folder")
        check_state(safetensors.torch.load_file(f"{source}-folder/model.safetensors"), expected())
    torch.save({"model": expected()}, "model.pt")
    ckpt("export", "model.pt", "--to", "renamed.safetensors", "--rename", "model.layer.*=blocks.*", "--rename", "model.*=*",
         "--skip", "model.none")
    want = {name.replace("layer.", "blocks."): tensor for name, tensor in expected().items() if name != "none"}
    check_state(safetensors.torch.load_file("renamed.safetensors"), want)


def shards_have_an_index():
    text = ckpt("export", "own", "--to", "shards", "--shard-size", "100B")
    assert " files, from step 7" in text, text
    with open("shards/model.safetensors.index.json", encoding="ascii") as file:
        index = json.load(file)
    want = expected()
    assert index["metadata"]["total_size"] == sum(t.numel() * t.element_size() for t in want.values())
    assert index["weight_map"].keys() == want.keys()
    got = {}
    for name in sorted(set(index["weight_map"].values())):
        shard = safetensors.torch.load_file(f"shards/{name}")
        assert all(index["weight_map"][tensor] == name for tensor in shard), name
        got.update(shard)
    check_state(got, want)
    count = len(set(index["weight_map"].values()))
    assert sorted(os.listdir("shards")) == [f"model-{i + 1:05}-of-{count:05}.safetensors" for i in range(count)] + ["model.safetensors.index.json"]
    assert ckpt("diff", "shards", "own") == ""


def nothing_is_written_over():
    assert "is there already" in ckpt("export", "own", "--to", "own.safetensors", expect=1)
    assert "is there already" in ckpt("export", "own", "--to", "own-folder", expect=1)
    for arguments, word in ((["own"], "a target is needed"), (["own", "--to", "x.safetensors", "--shard-size", "1GB"], "needs a folder"),
                            (["own", "--to", "x", "--shard-size", "much"], "--shard-size much"), (["--to", "x"], "a source is needed"),
                            (["own", "--to", "x", "--rename", "a"], "OURS=THEIRS"), (["own", "--to"], "--to needs a value")):
        text = ckpt("export", *arguments, expect=2)
        assert word in text, text
    assert "there is no tensor to export" in ckpt("export", "own", "--to", "x", "--only", "nothing", expect=1)
    torch.save({"wide": torch.ones(3, dtype=torch.complex128)}, "wide.pt")
    assert "type complex128, which safetensors files do not have" in ckpt("export", "wide.pt", "--to", "x", expect=1)
    assert "two tensors are named same" in ckpt("export", "own", "--to", "x.safetensors", "--rename", "layer.*=same", expect=1)
    assert not glob.glob("x*"), glob.glob("x*")


def what_has_a_name_is_nobody_elses():
    """Links, FIFOs, and files of users beside the target and in its place."""
    os.mkdir("beside")
    with open("beside/victim", "w", encoding="ascii") as file:
        file.write("precious")
    for name, target, expect in (("link", "t.safetensors.tmp", 0), ("fifo", "t.safetensors.tmp", 0), ("file", "t.safetensors.tmp", 0),
                                 ("link", "t.safetensors", 1), ("dangling", "t.safetensors", 1), ("fifo", "t.safetensors", 1)):
        path = f"beside/{target}"
        make = {"link": lambda: os.symlink("victim", path), "dangling": lambda: os.symlink("nowhere", path), "fifo": lambda: os.mkfifo(path),
                "file": lambda: shutil.copy("beside/victim", path)}[name]
        make()
        before = os.lstat(path)
        ckpt("export", "own", "--to", "beside/t.safetensors", expect=expect)
        assert os.lstat(path)[:9] == before[:9], (name, target)
        with open("beside/victim", encoding="ascii") as file:
            assert file.read() == "precious", (name, target)
        os.unlink(path)
        if expect == 0:
            check_state(safetensors.torch.load_file("beside/t.safetensors"), expected())
            os.unlink("beside/t.safetensors")
        assert os.listdir("beside") == ["victim"], os.listdir("beside")
    ckpt("export", "own", "--to", "beside/" + 240 * "n" + ".safetensors")  # a name that leaves no room for another one beside it


def of_two_exports_one_succeeds():
    """RACES: how many; 10,000 were run."""
    contents = {}
    for one in ("own", "own.safetensors"):
        ckpt("export", one, "--to", "raced", *(() if one == "own" else ("--rename", "*=other.*")), "--shard-size", "100B" if one == "own" else "150B")
        contents[one] = {name: open(f"raced/{name}", "rb").read() for name in os.listdir("raced")}
        shutil.rmtree("raced")
    for race in range(int(os.environ.get("RACES", "40"))):
        both = [subprocess.Popen([BINARY, "ckpt", "export", "own", "--to", "raced", "--shard-size", "100B"], stdout=subprocess.DEVNULL,
                                 stderr=subprocess.PIPE, text=True),
                subprocess.Popen([BINARY, "ckpt", "export", "own.safetensors", "--to", "raced", "--rename", "*=other.*", "--shard-size", "150B"],
                                 stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)]
        errors = [process.communicate(timeout=60)[1] for process in both]
        codes = [process.returncode for process in both]
        assert sorted(codes) == [0, 1], (race, codes, errors)
        assert "is there already" in errors[codes.index(1)], errors
        found = {name: open(f"raced/{name}", "rb").read() for name in os.listdir("raced")}
        assert found == contents["own" if codes[0] == 0 else "own.safetensors"], (race, sorted(found))
        shutil.rmtree("raced")


def an_interrupt_leaves_nothing():
    torch.save({"large": torch.zeros(64 << 20, dtype=torch.uint8).expand(64, 64 << 20)}, "large.pt")  # 4 GiB to write, 64 MiB here
    process = subprocess.Popen([BINARY, "ckpt", "export", "large.pt", "--to", "large.safetensors"])
    written = 0
    while written < 1 << 20:  # the file has no name yet
        assert process.poll() is None
        with open(f"/proc/{process.pid}/io", encoding="ascii") as file:
            written = int(dict(line.split(": ") for line in file)["wchar"])
        time.sleep(0.001)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=60) == -signal.SIGINT
    assert not glob.glob("large.safetensors*"), glob.glob("large.safetensors*")
    os.unlink("large.pt")


# ---- removing ----

def the_newest_stay():
    for step in (1, 2, 3, 4):  # a save keeps two: newer ones of an earlier try stay, too
        save("more", step=10 - step)
    save("more", "save")
    open("more/checkpoint-3-0123456789abcdef-0.safetensors", "w", encoding="ascii").close()
    os.unlink(glob.glob("more/checkpoint-9-*-1.safetensors")[0])
    assert ckpt("prune", "more", "--keep", "2") == "1 checkpoint removed, 3 left\n"  # 9 is not whole, and newer than those that stay
    assert sorted(glob.glob("more/checkpoint-?.json")) == [f"more/checkpoint-{step}.json" for step in (7, 8, 9)]
    assert not glob.glob("more/checkpoint-3-*")
    assert ckpt("prune", "more", "--keep", "1") == "1 checkpoint removed, 2 left\n"
    assert ckpt("prune", "more") == "0 checkpoints removed, 2 left\n"
    assert ckpt("verify", "more/checkpoint-8.json") and ckpt("verify", "more/step-7.json")
    assert "--keep 0" in ckpt("prune", "more", "--keep", "0", expect=2)


TESTS = [what_is_there_is_listed, every_kind_is_shown_alike, damage_is_named, the_newest_is_agreed_on, differences_are_told, others_read_what_is_exported,
         shards_have_an_index, nothing_is_written_over, what_has_a_name_is_nobody_elses, of_two_exports_one_succeeds,
         an_interrupt_leaves_nothing, the_newest_stay]


def main():
    with tempfile.TemporaryDirectory(prefix="muster-ckpt-") as folder:
        os.chdir(folder)
        cases.run(TESTS)
        os.chdir("/")


main()
