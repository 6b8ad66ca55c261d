"""What a serving process asks of its interpreter and its kernel."""

from __future__ import annotations

import ctypes
import gc
import os
import resource

# As many as the systemd unit allows; a program that closes every descriptor there could be takes long over more.
MOST_DESCRIPTORS = 65536
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
LARGE_BLOCK_BYTES = 1024 * 1024
KEPT_BYTES = 2 * LARGE_BLOCK_BYTES
# Pools, listeners, logs, threads' pipes, files that are being read.
OWN_DESCRIPTORS = 256


def cpus(processes: int = 1) -> int:
    """How many CPUs each of ``processes`` has, of those that this process may use: one at the least."""
    return max(1, len(os.sched_getaffinity(0)) // processes)


def allow_descriptors() -> int:
    """Raise the limit of open files as far as it makes sense and the system allows; the limit. Children inherit it.

    Every client is a descriptor, and the usual soft limit of 1024 is far below what one process can serve.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return MOST_DESCRIPTORS
    wanted = MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MOST_DESCRIPTORS)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return max(soft, wanted)


def room_for_clients(configured: int) -> int:
    """How many connections of clients to take: each may need another one to the store, and some are for ourselves."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return configured
    return max(1, min(configured, (limit - OWN_DESCRIPTORS) // 2))


def settle() -> None:
    """To be called once everything is loaded: what is there now stays.

    Looking through a hundred thousand objects for garbage stops the process for a tenth of a second, again and again.
    """
    gc.collect()
    gc.freeze()
    _set_allocator()


def give_back() -> None:
    """What was let go of goes back to the system, which the allocator does not do by itself as long as something lies
    behind it: after many uploads or slow readers half of a process (malloc_trim(3)). Takes some milliseconds, without
    the interpreter's lock. Elsewhere than with glibc there is nothing to do."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _set_allocator() -> None:
    """glibc learns to keep large blocks that were let go of once; parts of uploads would stay for ever. With a limit
    of our own they go back to the system at once (mallopt(3)). What is smaller stays until ``give_back``: a read's
    buffer at the end of the heap would go back after every read, and be asked for again before the next. Elsewhere
    there is nothing to set."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, LARGE_BLOCK_BYTES)
        mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES)
