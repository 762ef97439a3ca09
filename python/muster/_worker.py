"""What a worker of muster.launch() runs for a function: python _worker.py CALL_FILE. It unpickles function and arguments, calls, and leaves
the result for the launcher as result.PID beside the file.

It is started by its path and puts the launcher's sys.path in place of its own folder, so the launcher may have found its modules anywhere.
"""

import sys

sys.path.pop(0)

import os  # noqa: E402
import pickle  # noqa: E402
from multiprocessing import spawn  # noqa: E402


if not os.environ.get("OMP_NUM_THREADS"):
    os.environ.pop("OMP_NUM_THREADS", None)  # empty: set by the launcher, against the limit that muster run has for programs


def recorder():
    """PyTorch's @record: it keeps what the program has set up there (get_error_handler). Its result is the same error file as ours."""
    from torch.distributed.elastic.multiprocessing.errors import record

    return record


def main(path):
    with open(path, "rb") as file:
        preparation = pickle.load(file)
        # The launcher's sys.path, sys.argv and __main__ (as __mp_main__), as multiprocessing's spawn does it.
        spawn.prepare(preparation)

        def call():
            function, arguments = pickle.load(file)
            result = function(*arguments)
            aside = os.path.join(os.path.dirname(path), f".{os.urandom(8).hex()}.tmp")
            with open(aside, "xb") as target:
                pickle.dump(result, target, protocol=pickle.HIGHEST_PROTOCOL)
            os.replace(aside, os.path.join(os.path.dirname(path), f"result.{os.getpid()}"))

        recorder()(call)()


if __name__ == "__main__":
    main(sys.argv[1])
