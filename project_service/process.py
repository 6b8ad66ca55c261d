"""What a serving process asks of its interpreter and its kernel."""

from __future__ import annotations

import gc
import resource

# As many as the systemd unit allows; a program that closes every descriptor there could be takes long over more.
MOST_DESCRIPTORS = 65536
# Pools, listeners, logs, threads' pipes, files that are being read.
OWN_DESCRIPTORS = 256


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
