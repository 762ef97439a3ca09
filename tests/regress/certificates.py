"""Certificates for jobs with TLS, made anew by OpenSSL's program: nothing secret lies in the repository."""

import os
import subprocess

EC = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")


def openssl(folder, *arguments):
    done = subprocess.run(["openssl", *arguments], cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"openssl {arguments}: {done.stderr}")


def make(folder):
    """member.pem and member.key, signed by authority.pem; stranger.pem and stranger.key, by another authority."""
    for authority, name in (("authority", "member"), ("other", "stranger")):
        openssl(folder, "req", "-x509", *EC, "-days", "2", "-subj", f"/CN={authority}", "-keyout", f"{authority}.key",
                "-out", f"{authority}.pem")  # fmt: skip
        openssl(folder, "req", *EC, "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.csr")
        openssl(folder, "x509", "-req", "-in", f"{name}.csr", "-CA", f"{authority}.pem", "-CAkey", f"{authority}.key",
                "-CAcreateserial", "-days", "2", "-out", f"{name}.pem")  # fmt: skip


def conf(folder, name="member"):
    """For --rdzv-conf."""
    files = (("tls_cert", f"{name}.pem"), ("tls_key", f"{name}.key"), ("tls_ca", "authority.pem"))
    return ",".join(f"{key}={os.path.join(folder, file)}" for key, file in files)
