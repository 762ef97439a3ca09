"""Bad input: a sentence that says what to do, a non-zero exit, and nothing left behind."""

import os
import resource
import shutil
import signal
import subprocess

import jobs


def expect_refusal(scratch, process, within_s, *words):
    """Ends with 1 (or 2) and a message that has all the words; no worker, process or temporary file is left."""
    code = process.expect(within_s)
    jobs.check(code in (1, 2), f"exit code {code}\n{process.tail()}")
    text = process.err()
    missing = [word for word in words if word.lower() not in text.lower()]
    jobs.check(not missing, f"the message does not say {missing}\n{process.tail()}")
    jobs.check("Assertion" not in text and "Sanitizer" not in text, f"our own bug\n{process.tail()}")
    scratch.expect_nobody()


def refuse(words, *arguments, within_s=30, **options):
    jobs.isolate()
    with jobs.Scratch() as scratch:
        process = scratch.run("muster", *[str(a).replace("SCRATCH", scratch.root) for a in arguments], **options)
        expect_refusal(scratch, process, within_s, *words)


def case_missing_program():
    """A program that does not exist is named, with the system's reason."""
    refuse(["/no/such/program", "No such file"], "--standalone", "--no-python", "/no/such/program")


def case_missing_script():
    """A script that does not exist is named."""
    refuse(["no-such-script.py"], "--standalone", "no-such-script.py")
    refuse(["begins with an en dash (U+2013)"], "–nproc-per-node=2", "train.py")


def case_unreadable_script():
    """A script that may not be read, and a program that may not be executed, are named."""
    jobs.isolate()
    with jobs.Scratch() as scratch:
        path = scratch.write("not-executable", "#!/bin/sh\nexit 0\n", 0o644)
        process = scratch.run("muster", "--standalone", "--no-python", path)
        expect_refusal(scratch, process, 20, path, "Permission denied")
        process = scratch.run("muster", "--standalone", "--no-python", scratch.root)
        expect_refusal(scratch, process, 20, scratch.root)
        script = scratch.write("unreadable.py", "print(1)", 0)
        os.chmod(scratch.root, 0o755)
        user = nobody() if os.getuid() == 0 else None
        code, text = limited(scratch, resource.RLIMIT_CORE, 0, user, "--standalone", script)
        jobs.check(code == 1 and f"'{script}'" in text, f"exit code {code}: {text}")
        jobs.check("Permission denied" in text and "chmod" in text, f"not what is wrong, or not what to do: {text}")


def case_log_dir_is_a_file():
    """--log-dir on an existing file, and on a folder that cannot be made."""
    refuse(["SCRATCH-FILE"[8:]], "--standalone", "--log-dir=/etc/passwd/FILE", "--redirects=3", "--no-python", "true")
    jobs.isolate()
    with jobs.Scratch() as scratch:
        path = scratch.write("a-file", "text")
        process = scratch.run("muster", "--standalone", f"--log-dir={path}", "--no-python", "true")
        expect_refusal(scratch, process, 20, path)


def case_name_that_does_not_resolve():
    """An endpoint whose name nobody knows is an error that quotes it."""
    options = ["--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=nobody.invalid:29400"]
    refuse(["nobody.invalid"], *options, "--rdzv-conf=join_timeout=5,read_timeout=5", "--no-python", "true", within_s=60)


def case_endpoint_that_refuses():
    """An endpoint at which nothing listens: the address and the error are shown, and the wait is bounded."""
    options = ["--nnodes=2", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{jobs.free_port()}"]
    conf = "--rdzv-conf=is_host=0,join_timeout=5,read_timeout=5"
    refuse(["127.0.0.1", "refused"], *options, conf, "--no-python", "true", within_s=60)


def case_static_master_is_absent():
    """Static rank 1 without a rank 0 gives up after its time-out and says whom it looked for."""
    port = jobs.free_port()
    options = ["--nnodes=2", "--node-rank=1", "--master-addr=127.0.0.1", f"--master-port={port}"]
    refuse(["127.0.0.1", str(port)], *options, "--rdzv-conf=timeout=4", "--no-python", "true", within_s=60)


def case_full_disk_under_the_logs():
    """No space for the logs: the job neither hangs nor ends as if all were well without a word."""
    why = jobs.isolate(mounts=True)
    if why:
        raise jobs.Skip(f"no mount namespace for a small file system: {why}")
    with jobs.Scratch() as scratch:
        logs = f"--log-dir={scratch.small_file_system('size=256k')}"
        worker = ["--no-python", jobs.program("flood_worker"), scratch.channel.path, "20000", "100"]
        for options in (["--tee=3"], ["--redirects=3"]):
            process = scratch.run("muster", "--standalone", "--nproc-per-node=2", logs, *options, *worker)
            process.expect(60)
            said = process.err()
            jobs.check(
                process.popen.returncode != 0 or "No space" in said,
                f"{options}: exit code 0 and not a word about the full disk\n{process.tail()}",
            )
            scratch.expect_nobody()


def case_full_disk_and_lost_folder_are_told():
    """A report names a full file system below the log folder, and a working folder that was deleted."""
    why = jobs.isolate(mounts=True)
    if why:
        raise jobs.Skip(f"no mount namespace for a small file system: {why}")
    with jobs.Scratch() as scratch:
        logs = scratch.small_file_system("size=256k")
        script = "yes | head -c 1000000; test $? = 0"
        command = ["--standalone", f"--log-dir={logs}", "--redirects=3", "--no-python", "bash", "-o", "pipefail", "-c", script]
        process = scratch.run_to_end("muster", *command, code=1)
        process.wait_line(f"note +: the file system of the log folder {logs}/.* is full", 0)
    with jobs.Scratch() as scratch:
        os.mkdir(scratch.path("folder"))
        gone = f"cd folder && rmdir {scratch.path('folder')}"
        launcher = f"exec {jobs.muster_binary()} run --standalone"
        process = scratch.start("deleted", ["sh", "-c", f"{gone} && {launcher} --no-python sh -c 'exit 2'"])
        process.expect(jobs.SOON_S, 1)
        process.wait_line("note +: the working folder has been deleted", 0)
        os.mkdir(scratch.path("folder"))
        process = scratch.start("script", ["sh", "-c", f"{gone} && {launcher} train.py"])
        process.expect(jobs.SOON_S, 1)
        process.wait_line("the script 'train.py' cannot be found: the working folder has been deleted", 0)


def case_no_room_for_the_log_folder():
    """A file system without a single free block or inode for the log folders is a clear error."""
    why = jobs.isolate(mounts=True)
    if why:
        raise jobs.Skip(f"no mount namespace for a small file system: {why}")
    with jobs.Scratch() as scratch:
        logs = f"--log-dir={scratch.small_file_system('size=4k,nr_inodes=3')}"
        command = ["--standalone", "--nproc-per-node=2", logs, "--redirects=3", "--no-python", "true"]
        expect_refusal(scratch, scratch.run("muster", *command), 20, "No space left")


def limited(scratch, limit, count, user, *arguments):
    """(exit code, output) of `muster run` under a resource limit, and as another user where root would not feel it."""

    def apply():
        resource.setrlimit(limit, count if isinstance(count, tuple) else (count, count))
        if user is not None:
            os.setgroups([])
            os.setgid(user)
            os.setuid(user)

    command = jobs.launcher_command("muster") + [str(a) for a in arguments]
    if user is not None:  # a checkout below /root is closed to others
        command[0] = shutil.copy(command[0], scratch.path("program"))
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=scratch.env(), cwd="/",
        preexec_fn=apply, timeout=60, check=False,
    )
    return done.returncode, done.stdout.decode(errors="replace")


def nobody():
    """A user with no other processes."""
    return 64534 + os.getpid() % 1000


def case_more_workers_than_processes():
    """More workers than the system lets us start: an error that says so, and those already started are gone."""
    jobs.isolate()
    if os.getuid() != 0:
        raise jobs.Skip("needs root, to become a user with no other processes")
    with jobs.Scratch() as scratch:
        for path in (scratch.root, scratch.path("tmp")):
            os.chmod(path, 0o777)
        arguments = ["--standalone", "--nproc-per-node=40", "--no-python", "sleep", "60"]
        code, text = limited(scratch, resource.RLIMIT_NPROC, 20, nobody(), *arguments)
        jobs.check(code == 1, f"exit code {code}: {text[-500:]}")
        jobs.check("processes" in text and "--nproc-per-node" in text, f"no reason: {text[-500:]}")
        scratch.expect_nobody()


def case_too_few_descriptors():
    """Too few descriptors, for the pipes of all workers or at all, is an error that says what is needed."""
    jobs.isolate()
    for nproc, count in ((60, 40), (60, 200), (4, 40), (1, 30), (1, 14), (1, 8), (1, 4)):
        with jobs.Scratch() as scratch:
            arguments = ["--standalone", f"--nproc-per-node={nproc}", "--tee=3", "--no-python", "sleep", "60"]
            code, text = limited(scratch, resource.RLIMIT_NOFILE, count, None, *arguments)
            jobs.check(code == 1, f"{count} for {nproc}: exit code {code}: {text[-500:]}")
            jobs.check(f"{count} are allowed" in text and "ulimit" in text, f"no reason: {text[-500:]}")
            scratch.expect_nobody()


def case_soft_descriptor_limit():
    """A low soft limit is the workers' alone: the launcher takes what the hard one allows."""
    jobs.isolate()
    with jobs.Scratch() as scratch:
        options = ["--standalone", "--nproc-per-node=40", "--tee=3", "--no-python"]
        code, text = limited(scratch, resource.RLIMIT_NOFILE, (64, 1024), None, *options, "sh", "-c", "ulimit -n")
        said = [line.partition(":")[2] for line in text.splitlines() if line.startswith("[default")]
        jobs.check(code == 0 and said == ["64"] * 40, f"exit code {code}: {text[-500:]}")


def case_file_size_limit():
    """A limit on the size of files ends neither the launcher nor, with --tee, the job."""
    jobs.isolate()
    with jobs.Scratch() as scratch:
        logs = f"--log-dir={scratch.path('logs')}"
        command = ["--standalone", logs, "--tee=1", "--no-python", "sh", "-c", "seq 100000; sleep 0.1; kill -0 $PPID"]
        code, text = limited(scratch, resource.RLIMIT_FSIZE, 4096, None, *command)
        jobs.check(code == 0, f"exit code {code}: {text[-500:]}")
        jobs.check("File too large" in text, f"not a word about the limit: {text[-500:]}")


def case_closed_standard_streams():
    """Started with standard streams closed, the launcher works and ends as it would otherwise."""
    jobs.isolate()
    for closed in ("<&-", ">&-", "2>&-", "<&- >&- 2>&-"):
        for options in ("", "--tee=3", "--merge-logs"):
            with jobs.Scratch() as scratch:
                inner = f"echo out; echo err >&2; touch {scratch.path('done')}"
                command = f"{jobs.muster_binary()} run --standalone {options} --no-python sh -c '{inner}' {closed}"
                scratch.start("closed", ["sh", "-c", command]).expect(jobs.SOON_S, 0)
                jobs.check(os.path.exists(scratch.path("done")), f"{closed} {options}: the worker did not run to its end")


def case_store_says_where_it_listens():
    """muster store: the line that names the port, or an error; SIGTERM ends it well."""
    jobs.isolate()
    with jobs.Scratch() as scratch, open("/dev/full", "wb") as full:
        command = [jobs.muster_binary(), "store", "--port", "0"]
        process = scratch.start("full", command, stdout=full)
        expect_refusal(scratch, process, 10, "stdout")
        ours, theirs = os.pipe()
        process = scratch.start("store", command, stdout=theirs)
        os.close(theirs)
        line = os.read(ours, 1000).decode()
        os.close(ours)
        jobs.check(line.startswith("listening on 127.0.0.1:"), line)
        port = int(line.rpartition(":")[2])
        taken = scratch.start("taken", [*command[:-1], str(port)])
        taken.expect(jobs.SOON_S, 1)
        jobs.check(f"port {port}" in taken.err() and "--port 0" in taken.err(), taken.tail())
        process.signal(signal.SIGTERM)
        process.expect(jobs.SOON_S, 0)


def case_many_workers():
    """Two hundred workers on one node: all ranks are there once, and all end."""
    jobs.isolate()
    with jobs.Scratch() as scratch:
        process = scratch.run("muster", "--standalone", "--nproc-per-node=200", *jobs.worker(scratch))
        starts = scratch.channel.expect(200, "start", 60)
        jobs.check(sorted(s.rank for s in starts) == list(range(200)), "ranks are missing or doubled")
        for s in starts:
            jobs.tell_exit(s.pid, 0)
        process.expect(30, 0)
        scratch.expect_nobody()


def shared_memory():
    """The names there, save those of Open MPI's ranks, which other tests run beside this one."""
    return {name for name in os.listdir("/dev/shm") if not name.startswith("vader_segment")}


def case_nothing_is_left_behind():
    """A job that ends well, and one that fails, leave no process, and in the temporary folder only its logs."""
    jobs.isolate()
    for code in ("0", "3"):
        with jobs.Scratch() as scratch:
            before = shared_memory()
            process = scratch.run(
                "muster", "--standalone", "--nproc-per-node=2", *jobs.worker(scratch, "--exit", code)
            )
            process.expect(jobs.SOON_S, 1 if code == "3" else 0)
            scratch.expect_nobody()
            left = [name for name in os.listdir(scratch.path("tmp")) if not name.startswith("torchelastic_")]
            jobs.check(not left, f"left in the temporary folder: {left}")
            jobs.check(shared_memory() <= before, "left in /dev/shm")
