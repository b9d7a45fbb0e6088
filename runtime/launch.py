"""What runs between this process and the programs it starts: a script of the standard library alone.

`exec` switches the user, asks the kernel to end the program with its parent, and becomes the program.
`guard` outlives its parent by a moment and ends whatever the parent could not.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from typing import NoReturn

PR_SET_PDEATHSIG = 1  # linux/prctl.h
CANNOT_START = 127  # the shell's status for a command that could not be run
STAY = -1  # as a uid: no switch of user
GUARD_GRACE_SECONDS = 20.0  # a fast Postgres shutdown writes a checkpoint first


def die_with_parent(death_signal: int) -> None:
    """Have Linux send `death_signal` when the thread that started this process ends; elsewhere do nothing."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, death_signal, 0, 0, 0)


def become(argv: list[str], parent: int, death_signal: int, uid: int, gid: int) -> NoReturn:
    """Replace this process by `argv`, as another user unless `uid` is STAY."""
    if uid != STAY:
        os.setgroups([])
        os.setgid(gid)
        os.setuid(uid)
    die_with_parent(death_signal)  # after the switch of user, which clears it
    if os.getppid() != parent:  # it ended before the request above could count
        os._exit(CANNOT_START)
    for ignored in (signal.SIGPIPE, signal.SIGXFSZ):  # ignored by Python, and an ignored signal outlives exec
        signal.signal(ignored, signal.SIG_DFL)
    try:
        os.execvp(argv[0], argv)  # noqa: S606  no shell is wanted: argv is a list
    except OSError as error:
        sys.stderr.write(f"cannot start {argv[0]}: {error.strerror}\n")
        sys.stderr.flush()
        os._exit(CANNOT_START)


def guard() -> None:
    """Follow the parent's processes and directories on stdin; when it closes, end and remove what is left.

    A line is a JSON list: `["process", pid, signal]`, `["ended", pid]`, `["directory", path]` or
    `["removed", path]`.
    """
    import json  # noqa: PLC0415  here, because every start of a program would pay for them
    import shutil  # noqa: PLC0415
    import time  # noqa: PLC0415

    for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(name, signal.SIG_IGN)
    processes: dict[int, int] = {}
    directories: dict[str, None] = {}
    for line in sys.stdin:
        match json.loads(line):
            case ["process", int(pid), int(number)]:
                processes[pid] = number
            case ["ended", int(pid)]:
                processes.pop(pid, None)
            case ["directory", str(path)]:
                directories[path] = None
            case ["removed", str(path)]:
                directories.pop(path, None)
    alive = [pid for pid, number in processes.items() if _signal_group(pid, number)]
    deadline = time.monotonic() + GUARD_GRACE_SECONDS
    while alive and time.monotonic() < deadline:
        time.sleep(0.02)  # not its children: there is nothing to wait on
        alive = [pid for pid in alive if _signal_group(pid, 0) and not _is_zombie(pid)]
    for pid in alive:
        _signal_group(pid, signal.SIGKILL)
    for path in directories:
        shutil.rmtree(path, ignore_errors=True)


def _signal_group(pid: int, number: int) -> bool:
    """Signal the process group that `pid` leads; False where it is gone."""
    try:
        os.killpg(pid, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def _is_zombie(pid: int) -> bool:
    """Whether it has ended and its new parent has not asked yet, as the first process of a container may never."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:  # noqa: PTH123  pathlib would double the time to start
            return stat.read().rpartition(b")")[2].split()[:1] == [b"Z"]
    except OSError:
        return False


def _main(mode: str, *rest: str) -> None:
    if mode == "guard":
        guard()
        return
    parent, death_signal, uid, gid = (int(number) for number in rest[:4])
    become(list(rest[4:]), parent, death_signal, uid, gid)


if __name__ == "__main__":
    _main(*sys.argv[1:])
