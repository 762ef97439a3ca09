"""Many torchruns for one import of PyTorch, which takes longer than what most of them do: torchruns.py COMMAND

Reads a line of JSON: the arguments, environment, working folder and files for stdout and stderr of a torchrun. It is
forked from here and goes on as the script COMMAND would; its process id is printed, and after the next line, which may be
empty, its exit code (negative: a signal), once it has ended.
"""

import atexit
import json
import os
import sys
import tempfile
import threading

COMMAND = sys.argv[1]
sys.path[0] = os.path.dirname(COMMAND)  # not this folder, which has modules of other names for itself
BEFORE = dict(os.environ)
import torch.distributed.run  # noqa: E402

if dict(os.environ) != BEFORE:
    sys.exit("importing PyTorch changes the environment, which the forked ones would lack")


def become(told):
    os.environ.clear()
    os.environ.update(told["environment"])
    os.chdir(told["folder"])
    for fd, path in enumerate((os.devnull, told["out"], told["err"])):
        file = os.open(path, os.O_RDWR)
        os.dup2(file, fd)
        os.close(file)
    sys.argv = [COMMAND, *told["arguments"]]
    tempfile.tempdir = None  # found out anew


def serve():
    """Returns in the children."""
    lines = sys.stdin.buffer.raw  # nothing that is not asked for lies in a buffer when it is forked
    while line := lines.readline():
        pid = os.fork()
        if pid == 0:
            return json.loads(line)
        print(pid, flush=True)
        lines.readline()
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
    sys.exit(0)


def run():
    """The exit code of the script, as the interpreter would find it."""
    try:
        sys.exit(torch.distributed.run.main())
    except SystemExit as end:
        if end.code is not None and not isinstance(end.code, int):
            print(end.code, file=sys.stderr)
            return 1
        return end.code or 0
    except BaseException:  # pylint: disable=broad-except
        sys.excepthook(*sys.exc_info())
        return 1


def leave(code):
    """As the interpreter ends, but that it does not take down a copy of all of PyTorch, which takes half a second."""
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


become(serve())
leave(run())
