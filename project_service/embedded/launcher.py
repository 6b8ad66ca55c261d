"""A script that runs between ``spawnProcess`` and the program: ``launcher.py PARENT SIGNAL UID GID BYTES PROGRAM …``.

It puts the program into a session of its own, so that a Ctrl-C at the terminal reaches only the service, which then
stops its children in order. It gives up root, unless UID and GID are -1. It makes the kernel send SIGNAL to the
program when the service, whose pid is PARENT, dies. It gives the program a scheduling policy under which it does not
preempt others, and limits the memory of each of its processes to BYTES, unless that is 0. Then it becomes the
program. It uses only the standard library, and little of it, because it runs at every start.
"""

import _signal  # type: ignore[import-not-found]  # "signal" without what it imports
import os
import sys

PR_SET_PDEATHSIG = 1


def main(argv: list[str]) -> None:
    # A SIGINT may come this early. Python would turn it into an exception, which gets lost if it is raised inside an
    # import; then the program would run on until it is killed.
    _signal.signal(_signal.SIGINT, _signal.SIG_DFL)
    parent, signal, uid, gid, max_bytes = (int(one) for one in argv[:5])
    # Imported and looked up while this is still root: the other user may not be able to read the standard library.
    import ctypes

    prctl = ctypes.CDLL(None).prctl
    os.setsid()
    use_batch_scheduling()
    if max_bytes:
        limit_memory(max_bytes)
    if uid >= 0:
        os.setgroups([])
        os.setgid(gid)
        os.setuid(uid)
    # This comes after the change of user, which would clear it (prctl(2)).
    prctl(PR_SET_PDEATHSIG, signal, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit("the service ended before its child began")
    try:
        os.execv(argv[5], argv[5:])  # noqa: S606  # the whole point
    except OSError as fault:
        sys.exit(f"{argv[5]} cannot be run: {fault.strerror}")


def use_batch_scheduling() -> None:
    """Use the policy SCHED_BATCH (sched(7)): the program does not preempt the service when that sends it something,
    so the service's CPU caches stay warm. A policy that somebody has chosen is left alone."""
    try:
        if os.sched_getscheduler(0) == os.SCHED_OTHER:
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    except OSError:
        return  # a container, say, that does not allow it


def limit_memory(max_bytes: int) -> None:
    """Limit what a process may allocate (getrlimit(2), RLIMIT_DATA). A lower limit that is there already stays."""
    import resource

    try:
        resource.setrlimit(resource.RLIMIT_DATA, (max_bytes, max_bytes))
    except (OSError, ValueError):
        return  # the limit is lower


if __name__ == "__main__":
    main(sys.argv[1:])
