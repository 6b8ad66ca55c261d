"""Run as a script between ``spawnProcess`` and the program: ``launcher.py PARENT SIGNAL UID GID PROGRAM ARGS…``.

It puts the program in a session of its own (a Ctrl-C at the terminal must reach the service alone, which then stops
its children in order), drops root where asked (UID and GID of -1: do not), has the kernel send SIGNAL when the
service dies, lets it interrupt nobody who is at work, and becomes the program. Only the standard library, and little
of it: this runs at every start.
"""

import _signal  # type: ignore[import-not-found]  # "signal" without what it imports
import os
import sys

PR_SET_PDEATHSIG = 1


def main(argv: list[str]) -> None:
    # A stop may come this early. Python makes an exception of it, which is lost where it strikes the machinery of
    # imports; the program would run on, and be killed when its time is over.
    _signal.signal(_signal.SIGINT, _signal.SIG_DFL)
    parent, signal, uid, gid = (int(one) for one in argv[:4])
    # Found while this is still root: the standard library may be where the other user cannot read.
    prctl = _prctl()
    os.setsid()
    _be_patient()
    if uid >= 0:
        os.setgroups([])
        os.setgid(gid)
        os.setuid(uid)
    # After the change of user, which clears it (prctl(2)).
    prctl(PR_SET_PDEATHSIG, signal, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit("the service ended before its child began")
    try:
        os.execv(argv[4], argv[4:])  # noqa: S606  # the whole point
    except OSError as fault:
        sys.exit(f"{argv[4]} cannot be run: {fault.strerror}")


def _be_patient() -> None:
    """Who asks it something goes on with his own work, and his caches stay as they are (sched(7), SCHED_BATCH).
    Another policy than the usual one is somebody's choice."""
    try:
        if os.sched_getscheduler(0) == os.SCHED_OTHER:
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    except (AttributeError, OSError):
        return  # another system, or one that does not allow it


def _prctl():  # type: ignore[no-untyped-def]  # its type would be an import at every start
    """The system call; where there is none, a killed service leaves the child to its next start."""
    try:
        import ctypes

        return ctypes.CDLL(None).prctl
    except (ImportError, OSError, AttributeError):
        return lambda *arguments: None


if __name__ == "__main__":
    main(sys.argv[1:])
