#!/usr/bin/env python3
# The bash completion offers what is right at each place of the line, in a real bash.
import os
import subprocess
import sys
import tempfile

SOURCE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "completion", "muster.bash")
BINARY = os.environ["MUSTER_BINARY"]
# (words of the line, the last one is being typed; words that must be offered; words that must not)
CASES = [
    ("muster|", "run store completion", "train.py"),
    ("muster|st", "store", "run"),
    ("muster|completion|", "bash zsh", "run"),
    ("muster|run|--nproc", "--nproc-per-node", "--nnodes"),
    ("muster|run|", "train.py", "--nnodes"),
    ("muster|run|--numa-binding|", "node socket exclusive core-complex", "train.py"),
    ("muster|run|--numa_binding|=|ex", "exclusive", "node train.py"),
    ("muster|run|--rdzv-backend|=", "c10d static muster", "train.py"),
    ("muster|run|--log-dir|", "folder", "train.py"),
    ("muster|run|--outcome|", "folder train.py", "--nnodes"),
    ("muster|run|--role|x|--sta", "--standalone", "train.py"),
    ("muster|run|-r|3|train.py|--st", "", "--standalone --start-method"),
    ("muster|run|--standalone|train.py|", "train.py folder", "--nnodes"),
    ("torchrun|--max", "--max-restarts", "--nnodes"),
    ("/usr/bin/torchrun|--start-method|", "spawn fork forkserver", "train.py"),
    ("muster|store|--p", "--port", "--nnodes"),
    ("muster|bench|all_", "all_reduce all_gather all_to_all", "broadcast"),
    ("muster|bench|all|-d|", "float32 int8", "all_reduce"),
    ("muster|bench|--m", "--memory", "--ranks"),
    ("muster|trace|m", "merge", "bench"),
    ("muster|trace|merge|", "folder", "merge"),
    ("muster|bogus|--n", "", "--nnodes"),
    ("muster|status|--", "--watch --json --rdzv-id --secret-file", "--nnodes"),
    ("muster|status|h:1|--tls-ca|", "folder", "--watch"),
    ("muster|fsdp|", "plan", "--nnodes"),
    ("muster|fsdp|plan|--", "--gpt --units --hosts --memory --keep-gathered", "--nnodes"),
    ("muster|fsdp|plan|--units|", "train.py", "--gpt"),
    ("muster|ckpt|", "ls show verify diff import export prune", "--nnodes"),
    ("muster|ckpt|import|--", "--to --step --only --skip", "--json --nnodes"),
    ("muster|ckpt|show|--", "--json --only --skip", "--to"),
    ("muster|ckpt|import|train.py|--to|", "folder", "--step"),
    ("muster|ckpt|export|--", "--to --shard-size --rename", "--json --step"),
    ("muster|ckpt|ls|--", "--help", "--only"),
    ("muster|doctor|--only|", "names gpus network", "--nnodes --list"),
    ("muster|doctor|--only|names,g", "names,gpus", "gpus names,names"),
    ("muster|doctor|--o", "--only", "names"),
]


def complete(words, folder):
    script = 'source "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _muster; printf "%s\\n" "${COMPREPLY[@]}"'
    done = subprocess.run(["bash", "-u", "-c", script, "bash", os.path.abspath(SOURCE), *words], cwd=folder,
                          capture_output=True, text=True, check=True)
    if done.stderr:
        raise AssertionError(done.stderr)
    return done.stdout.split()


def main():
    failures = 0
    with tempfile.TemporaryDirectory() as folder:
        os.mkdir(os.path.join(folder, "folder"))
        with open(os.path.join(folder, "train.py"), "w", encoding="utf-8"):
            pass
        checks = subprocess.run([BINARY, "doctor", "--list"], capture_output=True, text=True, check=True).stdout
        all_checks = " ".join(line.split()[0] for line in checks.splitlines())
        for line, wanted, unwanted in [*CASES, ("muster|doctor|--only|", all_checks, "")]:
            offered = complete(line.split("|"), folder)
            wrong = [w for w in wanted.split() if w not in offered] + [w for w in unwanted.split() if w in offered]
            if wrong:
                failures += 1
                print(f"{line}: wrong about {wrong}; offered {offered}")
    print(f"{len(CASES)} places, {failures} wrong")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
