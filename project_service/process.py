"""CPUs, threads, file descriptors, garbage collection and memory of a serving process."""

from __future__ import annotations

import ctypes
import gc
import os
import resource
import threading
from typing import Any

# As many as the systemd unit allows. With more, programs that close every possible descriptor at their start would be
# slow.
MAX_DESCRIPTORS = 65536
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
LARGE_BLOCK_BYTES = 1024 * 1024
KEPT_BYTES = 2 * LARGE_BLOCK_BYTES
# Descriptors for everything but clients: pools, listeners, logs, pipes of threads, files being read.
RESERVED_DESCRIPTORS = 256
NICENESS, LARGEST_NICENESS = 10, 19  # what threads have more than the process, and at most: setpriority(2)


def cpus(processes: int = 1) -> int:
    """How many of the CPUs that this process may use there are for each of ``processes``; at least one."""
    return max(1, len(os.sched_getaffinity(0)) // processes)


class _NiceThread(threading.Thread):
    def run(self) -> None:
        # On Linux each thread has a niceness of its own; the main thread's is the one that the process was given.
        niceness = os.getpriority(os.PRIO_PROCESS, os.getpid()) + NICENESS
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), min(niceness, LARGEST_NICENESS))
        super().run()


def let_threads_yield(pool: Any) -> None:
    """Have the threads that ``pool``, one of Twisted's, makes from now on give way to the reactor's thread where all
    CPUs are busy. Processes that they start do so too.

    What is computed there, such as the digests of large parts, belongs to requests that take long anyway. Beside four
    clients that upload 64 MiB each, a row takes two thirds of the time (p99), and uploads take no longer.
    """
    pool.threadFactory = _NiceThread


def allow_descriptors() -> int:
    """Raise the limit of open files as far as the system allows, up to ``MAX_DESCRIPTORS``. Returns the new limit.

    Every client takes a descriptor, and the usual soft limit of 1024 is far below what one process can serve. Child
    processes inherit the limit.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return MAX_DESCRIPTORS
    wanted = MAX_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MAX_DESCRIPTORS)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return max(soft, wanted)


def room_for_clients(configured: int) -> int:
    """How many client connections to accept: ``configured``, or fewer if there are not enough descriptors.

    Each client may need a second descriptor, for a connection to the store.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return configured
    return max(1, min(configured, (limit - RESERVED_DESCRIPTORS) // 2))


def tune_memory() -> None:
    """Tune garbage collector and allocator. Call it once everything is loaded.

    The objects that exist now will live as long as the process, so the garbage collector no longer looks at them:
    with a hundred thousand of them each pass stops the process for a tenth of a second.

    glibc's thresholds (mallopt(3)) are fixed, which it would otherwise raise whenever a large block is freed. Blocks
    of ``LARGE_BLOCK_BYTES`` and more, such as parts of uploads, are then returned to the system as soon as they are
    freed. Up to ``KEPT_BYTES`` of free memory at the end of the heap stay until ``trim_memory``; otherwise the buffer
    of every read from a socket would be returned and asked for again. Other C libraries are left alone.
    """
    gc.collect()
    gc.freeze()
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, LARGE_BLOCK_BYTES)
        mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES)


def trim_memory() -> None:
    """Return freed memory to the system (malloc_trim(3)). Does nothing with another C library than glibc.

    By itself glibc returns only what lies at the end of the heap, and keeps what lies in front of something still in
    use: after many uploads or slow readers that can be half of the process. It takes some milliseconds, during which
    the interpreter's lock is free.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
