#!/usr/bin/env python3
# muster ckpt reshard: any source becomes a checkpoint of any number of parts, which every world loads; failures leave nothing.
# needs: torch safetensors numpy
"""Usage: test_ckpt_reshard.py [CASE ...] (most need the first one before them); MUSTER_BINARY names the program. snapshot_peer, in tests/ beside
it, saves and loads step 7.
"""
import fcntl
import glob
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import warnings

import safetensors.torch
import torch
import torch.distributed.checkpoint as dcp

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import cases  # noqa: E402

BINARY = os.environ["MUSTER_BINARY"]
PEER = os.path.join(os.path.dirname(BINARY), "tests", "snapshot_peer")
# Every second one is cut among the ranks. Bytes count up, from the tensor's number.
TENSORS = ["layer.0.weight:7:7x3", "layer.0.bias:7:3", "layer.1.weight:8:5x5x2", "layer.1.bias:8:1", "head:0:11", "none:7:0x4"]


def ckpt(*arguments, expect=0, **options):
    done = subprocess.run([BINARY, "ckpt", *arguments], capture_output=True, text=True, timeout=100, check=False, **options)
    assert "\x1b" not in done.stderr + done.stdout, (arguments, done)
    assert done.returncode == expect, (arguments, done)
    return done.stdout if expect == 0 else done.stdout + done.stderr


def peer(kind, folder, ranks, step=7):
    subprocess.run([BINARY, "run", "--standalone", f"--nproc-per-node={ranks}", "--no-python", PEER, kind, folder, *TENSORS],
                   check=True, env={**os.environ, "OMP_NUM_THREADS": "1", "STEP": str(step)})


def content(folder):
    """Names and bytes of all files."""
    found = {}
    for name in sorted(os.listdir(folder)):
        with open(os.path.join(folder, name), "rb") as file:
            found[name] = file.read()
    return found


def parts(folder, step):
    return len(glob.glob(f"{folder}/checkpoint-{step}-*.safetensors"))


def training():
    torch.manual_seed(1)
    weight = torch.randn(31, 17)
    return {"model": {"weight": weight, "turned": weight.t(), "half": torch.randn(5).half(), "scalar": torch.tensor(2.5, dtype=torch.float64),
                      "empty": torch.empty(0, 3)}, "steps": torch.arange(7), "epoch": 3, "rate": 0.1, "note": "gr\u00f6\u00dfer"}


def make_sources():
    """Each kind of source, and the step that it has."""
    peer("checkpoint", "own", 3)
    subprocess.run([PEER, "save", "whole", *TENSORS], check=True)
    torch.save(training(), "model.pt")
    model = {name: tensor.contiguous() for name, tensor in training()["model"].items()}
    safetensors.torch.save_file(model, "one.safetensors")
    os.makedirs("hub")
    names = list(model)
    for number, some in ((1, names[:2]), (2, names[2:])):
        safetensors.torch.save_file({name: model[name] for name in some}, f"hub/{number}.safetensors")
    with open("hub/model.safetensors.index.json", "w", encoding="ascii") as file:
        json.dump({"weight_map": {name: f"{1 if name in names[:2] else 2}.safetensors" for name in names}}, file)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # no process group
        dcp.save(training(), checkpoint_id="dcp")
    return {"own": 7, "own/checkpoint-7.json": 7, "whole": 7, "whole/step-7.json": 7, "model.pt": 0, "one.safetensors": 0, "hub": 0, "dcp": 0}


def every_source_in_any_number_of_parts():
    for source, step in make_sources().items():
        for ranks in (1, 3, 40):
            text = ckpt("reshard", source, "--to", "out", "--ranks", str(ranks))
            assert text.startswith(f"step {step} of out, {ranks} part{'s' if ranks > 1 else ''}: "), text
            assert parts("out", step) == ranks and len(os.listdir("out")) == ranks + 2, os.listdir("out")
            assert ckpt("diff", source, "out") == "", source
            assert ckpt("verify", "out").startswith(f"checkpoint of step {step}: whole, ")
            shutil.rmtree("out")


def every_world_loads_it():
    for ranks in ("1", "2", "5", "30"):
        ckpt("reshard", "own", "--to", "worlds", "--ranks", ranks)
        for world in (1, 2, 4):
            peer("check", "worlds", world)


def steps_and_names_are_chosen():
    ckpt("reshard", "own", "--to", "chosen", "--ranks", "2", "--step", "90")
    ckpt("reshard", "model.pt", "--to", "chosen", "--ranks=3", "--step=91", "--only", "model", "--skip", "model.half")
    lines = ckpt("ls", "chosen").splitlines()
    assert [line.split(", ")[:2] for line in lines] == [["step 91: checkpoint", "3 parts"], ["step 90: checkpoint", "2 parts"]], lines
    shown = json.loads(ckpt("show", "--json", "chosen"))
    assert sorted(shown["tensors"]) == ["model.empty", "model.scalar", "model.turned", "model.weight"], shown
    ckpt("reshard", "chosen/checkpoint-90.json", "--to", "chosen", "--ranks", "1", "--step", "92", "--keep", "2")
    assert sorted(glob.glob("chosen/checkpoint-??.json")) == ["chosen/checkpoint-91.json", "chosen/checkpoint-92.json"]
    assert ckpt("diff", "own", "chosen") == ""
    assert parts("chosen", 90) == 0


def a_source_of_the_folder_itself():
    shutil.copytree("own", "itself")
    shutil.copytree("whole", "itself", dirs_exist_ok=True)
    torch.save(training(), "itself/model.pt")
    with open("itself/checkpoint-7-0123456789abcdef-9.safetensors", "w", encoding="ascii"):
        pass  # of a save that was cut off
    others = set(os.listdir("whole")) | {"model.pt"}
    for ranks in (5, 2):  # step 7 is replaced, by what was made of it
        ckpt("reshard", "itself/checkpoint-7.json", "--to", "itself", "--ranks", str(ranks))
        assert ckpt("diff", "own", "itself/checkpoint-7.json") == ""
        assert parts("itself", 7) == ranks and len(os.listdir("itself")) == ranks + 2 + len(others), os.listdir("itself")
    ckpt("reshard", "itself/step-7.json", "--to", "itself", "--ranks", "4")
    assert ckpt("diff", "whole", "itself/checkpoint-7.json") == ""
    ckpt("reshard", "itself/model.pt", "--to", "itself", "--ranks", "4", "--step", "8")
    assert ckpt("diff", "itself/model.pt", "itself/checkpoint-8.json") == ""
    assert others <= set(os.listdir("itself"))
    ckpt("import", "itself/checkpoint-7.json", "--to", "itself")  # of step 7, too: it replaces its snapshot
    assert ckpt("diff", "whole", "itself/step-7.json") == ""


# ---- failures ----

def refused(source, *words, folder="own-too", **options):
    """Fails with these words, and leaves a new folder and one with a checkpoint as they are."""
    if not os.path.exists("own-too"):
        shutil.copytree("own", "own-too")
    for target in ("fresh", folder):
        before = content(target) if target != "fresh" else None
        text = ckpt("reshard", source, "--to", target, "--ranks", "4", expect=1, **options)
        for word in words:
            assert word in text, (source, word, text)
        assert os.path.exists("fresh") is False
        assert before is None or content(target) == before, target


def flip(path, back):
    with open(path, "r+b") as file:
        file.seek(-back, os.SEEK_END)
        byte = file.read(1)
        file.seek(-back, os.SEEK_END)
        file.write(bytes([byte[0] ^ 1]))


def a_source_that_cannot_be_read():
    refused("absent", "absent is not there")
    shutil.copytree("own", "damaged")
    flip(glob.glob("damaged/checkpoint-7-*-2.safetensors")[0], 100)
    refused("damaged", "save step 7: ", "is damaged: a checksum does not fit")
    shutil.copytree("whole", "broken")
    flip(glob.glob("broken/step-7-*.safetensors")[0], 3)
    refused("broken", "save step 7: tensor ", "is damaged")
    # Its checksum is met in the last part.
    torch.save({"w": torch.ones(1000)}, "crc.pt")
    with open("crc.pt", "r+b") as file:
        at = file.read().rindex(b"\0\0\x80\x3f")
        file.seek(at)
        file.write(b"\1")
    refused("crc.pt", "a checksum of its zip archive does not fit")
    torch.save({"mask": torch.ones(3, dtype=torch.bool)}, "bool.pt")
    refused("bool.pt", "--skip NAME: mask (bool)")
    torch.save({}, "nothing.pt")
    refused("nothing.pt", "nothing.pt has nothing to take")


def a_folder_that_cannot_be_written():
    torch.save({"w": torch.ones(1 << 20)}, "large.pt")

    def limited():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (500000, 500000))  # in the middle of a part
    refused("large.pt", "save step 0: write ", "File too large", preexec_fn=limited)
    shutil.copytree("own", "locked")
    handle = os.open("locked", os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    before = content("locked")
    assert "another job is saving in locked" in ckpt("reshard", "own", "--to", "locked", "--ranks", "2", expect=1)
    os.close(handle)
    assert content("locked") == before
    assert "Not a directory" in ckpt("reshard", "own", "--to", "large.pt", "--ranks", "2", expect=1)
    assert "No such file" in ckpt("reshard", "own", "--to", "not/there", "--ranks", "2", expect=1)


def a_disk_that_is_full():
    """A file system of two megabytes, where one may be mounted."""
    if not shutil.which("unshare"):
        print("a full disk: not tried, there is no unshare", flush=True)
        return
    os.makedirs("small")
    script = "mount -t tmpfs -o size=2m none small && " \
        "{ $0 ckpt reshard large.pt --to small --ranks 3 2>&1 || echo code $?; } && ls small && echo done"
    done = subprocess.run(["unshare", "--mount", "--map-root-user", "sh", "-c", script, BINARY], capture_output=True, text=True, check=False)
    if not done.stdout:
        print("a full disk: not tried, nothing may be mounted here", flush=True)
        return
    lines = done.stdout.splitlines()
    assert len(lines) == 3 and "No space left on device" in lines[0] and lines[1:] == ["code 1", "done"], done


def long_source():
    """A source that is long, so that the program is stopped in the middle: of a few MiB on the disk."""
    if not os.path.exists("long.pt"):
        torch.save({"w": torch.zeros(64 << 20, dtype=torch.uint8).expand(64, 64 << 20)}, "long.pt")
    return "long.pt"


def begin(folder, known=()):
    """The program, at its second part or a later one."""
    process = subprocess.Popen([BINARY, "ckpt", "reshard", long_source(), "--to", folder, "--ranks", "64", "--step", "9"],
                               stderr=subprocess.PIPE, # signals are ignored in the background
                               preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
    while not os.path.exists(folder) or len(set(os.listdir(folder)) - set(known)) < 2:
        assert process.poll() is None
    return process


def an_interrupt_leaves_nothing():
    shutil.copytree("own", "stopped")
    before = content("stopped")
    for number in (signal.SIGINT, signal.SIGTERM):
        for folder in ("interrupted", "stopped"):
            process = begin(folder, before)
            process.send_signal(number)
            process.communicate(timeout=60)
            assert process.returncode == -number, process.returncode
        assert not os.path.exists("interrupted"), os.listdir("interrupted")
        assert content("stopped") == before, os.listdir("stopped")


def a_kill_leaves_what_the_next_one_removes():
    process = begin("killed")
    process.kill()
    process.communicate(timeout=60)
    assert "step 9: checkpoint, its save was cut off" in ckpt("ls", "killed")
    ckpt("reshard", "own", "--to", "killed", "--ranks", "2")
    assert len(os.listdir("killed")) == 4 and ckpt("diff", "own", "killed") == ""


def memory_is_bounded():
    """Eight times as much data takes no more memory, nor do more parts."""
    peaks = {}
    at_once = {**os.environ, "ASAN_OPTIONS": os.environ.get("ASAN_OPTIONS", "") + ":quarantine_size_mb=0"}  # what is freed is free
    code = ("import resource, subprocess, sys; subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL); "
            "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)")
    for count, numbers in ((32, [1]), (256, [1, 3, 200])):  # MiB
        torch.save({f"w{i}": torch.zeros(1 << 19) for i in range(count // 2)}, "peak.pt")
        for ranks in numbers:
            done = subprocess.run([sys.executable, "-c", code, BINARY, "ckpt", "reshard", "peak.pt", "--to", "peak", "--ranks", str(ranks)],
                                  capture_output=True, text=True, check=True, env=at_once)
            peaks[count, ranks] = int(done.stdout)
            shutil.rmtree("peak")
    assert all(peak < peaks[32, 1] + 4096 for peak in peaks.values()), peaks  # KiB


# ---- the command ----

def lines_that_are_not_understood():
    for arguments, word in (([], "a source, a folder and a number"), (["own"], "a source, a folder and a number"),
                            (["own", "--to", "x"], "a source, a folder and a number"), (["own", "--ranks", "2"], "a source, a folder and a number"),
                            (["own", "--to", "x", "--ranks"], "--ranks needs a value"), (["own", "--to", "x", "--ranks", "0"], "--ranks 0"),
                            (["own", "--to", "x", "--ranks", "2", "--step", "-1"], "--step -1"), (["own", "y", "--to", "x"], "'y' is one too many"),
                            (["own", "--to", "x", "--ranks", "65537"], "at most 65536"), (["own", "--to", "x", "--ranks", "2", "--keep", "0"], "--keep 0"),
                            (["own", "--to", "x", "--ranks", "2", "--json"], "'--json'")):
        text = ckpt("reshard", *arguments, expect=2)
        assert word in text, text
    assert not os.path.exists("x")


def all_verbs_tell_the_same_of_sources():
    texts = set()
    for verb in ("show", "verify", "diff", "import", "reshard", "export"):
        text = ckpt(verb, "--help")
        assert text.count("SOURCE is one of\n") == 1, text
        texts.add(text.partition("SOURCE is one of\n")[2].partition("\n  --")[0].partition("\n  -h")[0])
    assert len(texts) == 1, texts


TESTS = [every_source_in_any_number_of_parts, every_world_loads_it, steps_and_names_are_chosen, a_source_of_the_folder_itself,
         a_source_that_cannot_be_read, a_folder_that_cannot_be_written, a_disk_that_is_full, an_interrupt_leaves_nothing,
         a_kill_leaves_what_the_next_one_removes, memory_is_bounded, lines_that_are_not_understood, all_verbs_tell_the_same_of_sources]


def main():
    with tempfile.TemporaryDirectory(prefix="muster-reshard-") as folder:
        os.chdir(folder)
        cases.run(TESTS)
        os.chdir("/")


main()
