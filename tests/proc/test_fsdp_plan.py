#!/usr/bin/env python3
# muster fsdp plan: its command line, its exit codes, and that text and JSON say the same.
import json
import os
import subprocess
import sys
import tempfile

BINARY = os.environ["MUSTER_BINARY"]
SOURCE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
GPT2 = "12,12,768,1024,50257"
# (arguments, a word of the message); all end with 2.
NOT_UNDERSTOOD = [
    ([], "muster fsdp plan"),
    (["--gpt", GPT2], "muster fsdp plan"),
    (["paln", "--gpt", GPT2], "'paln'"),
    (["plan"], "--gpt and --units"),
    (["plan", "--gpt", GPT2, "--units", "model"], "--gpt and --units"),
    (["plan", "--gpt", GPT2, "more"], "'more'"),
    (["plan", "--gpt", GPT2, "--bf32"], "'--bf32'"),
    (["plan", "--gpt"], "needs a value"),
    (["plan", "--gpt", GPT2, "--hosts"], "needs a value"),
    (["plan", "--gpt", GPT2, "--hosts", "0"], "--hosts 0"),
    (["plan", "--gpt", GPT2, "--hosts", "65537"], "--hosts 65537"),
    (["plan", "--gpt", GPT2, "--hosts=99999999999999999999"], "--hosts 99999999999999999999"),
    (["plan", "--gpt", GPT2, "--ranks-per-host", "-1"], "--ranks-per-host -1"),
    (["plan", "--gpt", GPT2, "--states", "17"], "--states 17"),
    (["plan", "--gpt", GPT2, "--prefetch", "9"], "--prefetch 9"),
    *[(["plan", "--gpt", GPT2, "--memory", size], "--memory " + size)
      for size in ("", "0", "-1G", "G", "8GB", "8Gi", "8 GiBs", "1e300", "nan", "9999999P", "1" * 40)],
]
# All end with 1.
IMPOSSIBLE = [
    (["--gpt", "12,12,768"], "five numbers"),
    (["--gpt", "1,1,16777216,1,1"], "more than"),
    (["--gpt", GPT2, "--hosts", "65536", "--ranks-per-host", "2"], "65536 ranks"),
    (["--gpt", "4094,1,8,8,8", "--hosts", "65536"], "parts"),
    (["--units", "/nonexistent/model"], "cannot be opened"),
    (["--units", "/"], "cannot be read"),
    (["--units", "/dev/null"], "line 1"),
    (["--units", "/dev/zero"], "has more than"),
]


def fsdp(*arguments):
    done = subprocess.run([BINARY, "fsdp", *arguments], capture_output=True, text=True, timeout=60, check=False)
    assert "\x1b" not in done.stderr and "\x1b" not in done.stdout, (arguments, done)
    return done


def plan(*arguments):
    done = fsdp("plan", *arguments, "--json")
    assert done.returncode == 0 and not done.stderr, (arguments, done)
    return json.loads(done.stdout)


def bad_lines_are_refused():
    for arguments, word in NOT_UNDERSTOOD:
        done = fsdp(*arguments)
        assert done.returncode == 2 and word in done.stderr and not done.stdout, (arguments, done)
    for arguments, word in IMPOSSIBLE:
        done = fsdp("plan", *arguments)
        assert done.returncode == 1 and word in done.stderr and not done.stdout, (arguments, done)


def names_from_files_cannot_reach_the_terminal():
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "model")
        for count in (5, 0):  # in the report, and in a message
            with open(path, "w", encoding="utf-8") as file:
                json.dump([{"name": "a\x1b[31m", "parameters": [{"name": "\x1b]0;x\x07", "count": count}]}], file)
            done = fsdp("plan", "--units", path)
            assert done.returncode == (0 if count else 1), done


def options_change_what_they_should():
    one = plan("--gpt", GPT2)
    assert one["parameters"] == 163037184 and one["units"] == 14, one
    assert one["fsdp"]["parameter_bytes"] == 4 * one["parameters"] == one["ddp"]["parameter_bytes"], one
    assert one["fsdp"]["state_bytes"] == 8 * one["parameters"], one
    assert plan("--gpt", GPT2, "--states", "0")["fsdp"]["state_bytes"] == 0
    two = plan("--gpt", GPT2, "--hosts", "2", "--ranks-per-host=2")
    assert two["fsdp"]["gathered_bytes"] > 0 and two["fsdp"]["parameter_bytes"] < 0.51 * one["fsdp"]["parameter_bytes"], two
    less = plan("--gpt", GPT2, "--hosts", "2", "--ranks-per-host", "2", "--prefetch", "0")
    more = plan("--gpt", GPT2, "--hosts", "2", "--ranks-per-host", "2", "--keep-gathered")
    assert less["fsdp"]["gathered_bytes"] < two["fsdp"]["gathered_bytes"] < more["fsdp"]["gathered_bytes"], (less, more)
    hybrid = plan("--gpt", GPT2, "--hosts", "2", "--ranks-per-host", "2", "--hybrid")
    assert hybrid["fsdp"]["gathered_bytes"] == 0, hybrid
    assert hybrid["fsdp"]["parameter_bytes"] == one["fsdp"]["parameter_bytes"], hybrid
    assert one["fsdp"]["kept_bytes"] == one["fsdp"]["background_bytes"] == 12 * one["parameters"], one
    assert one["fsdp"]["peer_bytes"] == hybrid["fsdp"]["peer_bytes"] == 0, (one, hybrid)
    assert two["fsdp"]["peer_bytes"] == 4 * two["fsdp"]["background_bytes"] > 0, two
    half = plan("--gpt", GPT2, "--bf16")
    assert half["fsdp"]["copy_bytes"] == 2 * one["parameters"], half
    assert half["fsdp"]["gradient_bytes"] * 2 == one["fsdp"]["gradient_bytes"], half


def the_exit_code_says_whether_it_fits():
    fits = fsdp("plan", "--gpt", GPT2, "--memory", "64GiB")
    assert fits.returncode == 0 and "It fits" in fits.stdout, fits
    done = fsdp("plan", "--gpt", GPT2, "--memory", "2.5G", "--json")
    fit = json.loads(done.stdout)["fit"]
    assert done.returncode == 1 and not fit["fsdp_fits"] and fit["memory_bytes"] == 5 << 29, done
    for advice in fit["would_fit"]:
        words = advice["change"].split(" (")[0].split()
        if words[0] != "without":
            again = fsdp("plan", "--gpt", GPT2, "--memory", "2.5G", *words)
            assert again.returncode == 0, (advice, again)
    assert fit["would_fit"], fit


def the_page_shows_what_is_printed():
    with open(os.path.join(SOURCE, "docs", "fsdp.md"), encoding="utf-8") as file:
        example = file.read().split("<!-- plan:begin -->\n")[1].split("<!-- plan:end -->")[0]
    lines = [line[4:].rstrip() for line in example.splitlines()]
    assert lines[0].startswith("$ muster fsdp plan "), lines
    printed = fsdp(*lines[0].split()[3:]).stdout
    assert [line.rstrip() for line in printed.splitlines()] == lines[1:], printed


def help_is_help():
    for arguments in (["--help"], ["plan", "-h"]):
        done = fsdp(*arguments)
        assert done.returncode == 0 and done.stdout.startswith("usage: muster fsdp plan"), done
        assert all(len(line) <= 100 for line in done.stdout.splitlines()), done


def main():
    bad_lines_are_refused()
    names_from_files_cannot_reach_the_terminal()
    options_change_what_they_should()
    the_exit_code_says_whether_it_fits()
    the_page_shows_what_is_printed()
    help_is_help()
    print(f"{len(NOT_UNDERSTOOD) + len(IMPOSSIBLE)} bad lines, 6 cases: ok")
    return 0


if __name__ == "__main__":
    sys.exit(main())
