"""Is the job to stop before its end? (docs/worker-contract.md, MUSTER_STOP_PATH)"""

import os


def stop_requested() -> bool:
    """Has this rank's launcher asked its workers to stop, because a node will be taken away?

    It is a look at the file system and asks no other rank. Ranks must stop after the same step: agree on the answer with an all_reduce of
    the flag (MAX), save, and end with exit code 0. `muster run` then ends with 75. muster.integrations has this for frameworks.
    Without such a launcher the answer is False.
    """
    path = os.environ.get("MUSTER_STOP_PATH")
    return bool(path) and os.path.exists(path)  # type: ignore[arg-type]
