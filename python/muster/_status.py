"""How a job does now, as the program `muster status` tells it."""

import json
import subprocess
from typing import Any, Dict, Optional

from ._library import MusterError, program


def status(
    endpoint: str,
    *,
    run_id: Optional[str] = None,
    secret_file: Optional[str] = None,
    tls_cert: Optional[str] = None,
    tls_key: Optional[str] = None,
    tls_ca: Optional[str] = None,
    timeout_s: float = 60,
) -> Dict[str, Any]:
    """Asks the job that meets at `endpoint` (HOST[:PORT], several with commas) how it does. The members of the answer are in docs/status.md.

    >>> muster.status("node0:29400")["phase"]
    'running'

    MusterError if nothing answers, if what answers is no job, or if the secret is not the job's; the text says which.
    """
    command = [program(), "status", endpoint, "--json"]
    for name, value in (("rdzv-id", run_id), ("secret-file", secret_file), ("tls-cert", tls_cert), ("tls-key", tls_key), ("tls-ca", tls_ca)):
        if value is not None:
            command.append(f"--{name}={value}")
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired:
        raise MusterError(f"muster status {endpoint} has not ended after {timeout_s:g} s") from None
    if done.returncode != 0:
        raise MusterError(done.stderr.strip() or f"muster status {endpoint} ended with exit code {done.returncode}")
    found: Dict[str, Any] = json.loads(done.stdout)
    return found
