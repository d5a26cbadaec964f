#!/usr/bin/env python3
"""beside.py COMMAND...: runs it for the processors that nobody else wants, and exits as it does.

The command has nice 19, and so has all that it starts, a server that detaches itself as well. Where
the kernel shares processors among sessions before it looks at processes (autogroup, sched(7);
Debian's default) a nice value says nothing to other sessions, and each action of a Bazel server is
a session of its own: so each session below this process gets 19 for itself, a quarter of a second
after it began at the latest.

SIGTERM is passed on to the command, and sent to it if this process is killed.
"""
import ctypes
import os
import signal
import subprocess
import sys
import time

LOWEST = 19
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
LIBC = ctypes.CDLL(None)


def parents():
    """The parent of each process."""
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat") as file:
                    # Behind the command's name, which may hold anything: state, parent, ...
                    found[int(name)] = int(file.read().rpartition(")")[2].split()[1])
            except OSError:
                pass  # it has ended
    return found


def below(pid):
    """The processes that have `pid` among their ancestors."""
    children = {}
    for child, parent in parents().items():
        children.setdefault(parent, []).append(child)
    found = []
    todo = [pid]
    while todo:
        more = children.get(todo.pop(), [])
        found += more
        todo += more
    return found


def lower(done):
    """Sessions below this process that are not in `done` get the lowest priority. A user who is not
    root may set few in a second: what is refused is tried again."""
    for pid in below(os.getpid()):
        try:
            session = os.getsid(pid)
            if session not in done:
                with open(f"/proc/{pid}/autogroup", "w") as file:
                    file.write(str(LOWEST))
                done.add(session)
        except OSError:
            pass


def main():
    os.nice(LOWEST)
    # What detaches itself stays below this process, and is reaped by it.
    LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1)
    command = subprocess.Popen(
        sys.argv[1:], preexec_fn=lambda: LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGTERM))
    signal.signal(signal.SIGTERM, lambda *_: os.kill(command.pid, signal.SIGTERM))
    # Our own session is that of the script which waits for us, and of its user's terminal.
    done = {os.getsid(0)}
    while True:
        ended, status = os.waitpid(-1, os.WNOHANG)
        if ended == command.pid:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code
        if ended == 0:
            if os.path.exists("/proc/self/autogroup"):
                lower(done)
            time.sleep(0.25)


sys.exit(main())
