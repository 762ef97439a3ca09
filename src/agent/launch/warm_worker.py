"""A warm process of a spare node: imports what takes long, waits until the node is needed, and becomes the worker.

Run with -c by the agent (agent_warm.c), with the worker's own arguments: [-m] NAME ARGUMENT.... Its stdout is a socket to the
agent, on which it says with one byte that it has imported, and is given three descriptors with another: the worker's
stdout, its stderr, and the worker's environment, NAME=VALUE with a zero byte after each. What a script can see of
itself is what it would see when started as usual; what cannot be done here is started as usual, by exec.
"""


def hold():
    """Returns when this process is needed; ends it when the agent has no use for it any more."""
    import array
    import importlib
    import os
    import socket
    import sys

    channel = socket.socket(fileno=os.dup(1))
    os.dup2(2, 1)  # what imports print is not for the agent
    asked = os.environ.get("MUSTER_WARM_IMPORTS")
    for name in filter(None, map(str.strip, ("torch" if asked is None else asked).split(","))):
        try:
            importlib.import_module(name)
        except Exception as problem:  # the worker may do without, or say it better
            if asked is not None:
                print(f"MUSTER_WARM_IMPORTS: {name} cannot be imported: {problem}", file=sys.stderr)
    try:
        channel.send(b"R")
    except OSError:  # it is needed already, and has been told so
        pass
    data, ancillary, _, _ = channel.recvmsg(1, socket.CMSG_SPACE(3 * array.array("i").itemsize))
    if not data:
        os._exit(0)
    fds = array.array("i")
    for _, _, payload in ancillary:
        fds.frombytes(payload[: len(payload) // fds.itemsize * fds.itemsize])
    out, err, variables = fds
    channel.close()
    os.dup2(out, 1)
    os.dup2(err, 2)
    os.close(out)
    os.close(err)
    with open(variables, "rb") as text:
        pairs = [item.split(b"=", 1) for item in text.read().split(b"\0") if item.find(b"=") > 0]
    coerced = {b"LC_CTYPE": os.environb[b"LC_CTYPE"]} if b"LC_CTYPE" in os.environb else {}  # by the interpreter, PEP 538
    os.environ.clear()
    os.environb.update({**coerced, **dict(pairs)})


def become_worker():
    """The whole life of this process. Imports in functions: the names of this program must not be the script's."""
    import importlib.machinery
    import os
    import pkgutil
    import runpy
    import sys

    arguments = sys.argv[1:]
    is_module = arguments[0] == "-m"
    has_path = not (sys.flags.isolated or getattr(sys.flags, "safe_path", False))
    script = arguments[0]
    if has_path:
        sys.path[0] = os.getcwd() if is_module else os.path.dirname(os.path.realpath(script))
    hold()

    own_file = sys._getframe().f_code.co_filename

    def show(kind, problem, trace):
        while trace and trace.tb_frame.f_code.co_filename == own_file:
            trace = trace.tb_next
        sys.__excepthook__(kind, problem.with_traceback(trace), trace)

    sys.excepthook = show
    if hasattr(sys, "orig_argv"):
        sys.orig_argv = [sys.orig_argv[0], "-u", *arguments]
    names = sys.modules["__main__"].__dict__
    for name in ("hold", "become_worker"):
        del names[name]
    if is_module:
        sys.argv = arguments[1:]
        runpy._run_module_as_main(arguments[1])
        return
    if script.endswith(".pyc") or not os.path.isfile(script) or pkgutil.get_importer(script) is not None:
        os.execv(sys.executable, [sys.executable, "-u", *arguments])
    sys.argv = arguments
    path = os.path.abspath(script) if sys.version_info >= (3, 9) else script
    names.update(__doc__=None, __file__=path, __cached__=None)
    names["__loader__"] = importlib.machinery.SourceFileLoader("__main__", path)
    with open(path, "rb") as source:
        code = compile(source.read(), path, "exec", dont_inherit=True)
    exec(code, names)


become_worker()
