"""Descriptors, memory and the garbage collector of a process, mostly tried in a process of its own."""

from __future__ import annotations

import os
import platform
import resource
import subprocess
import sys

from twisted.trial.unittest import SkipTest, SynchronousTestCase

from project_service.process import MAX_DESCRIPTORS, NICENESS, allow_descriptors, room_for_clients


def output_of(program: str) -> str:
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return ran.stdout.strip()


class Descriptors(SynchronousTestCase):
    def limited(self, soft: int, hard: int) -> str:
        return output_of(
            "import resource as r; from project_service.process import allow_descriptors as allow; "
            f"r.setrlimit(r.RLIMIT_NOFILE, ({soft}, {hard})); print(allow(), *r.getrlimit(r.RLIMIT_NOFILE))"
        )

    def test_a_low_soft_limit_of_descriptors_is_raised(self) -> None:
        self.assertEqual(self.limited(256, 2000), "2000 2000 2000")

    def test_a_sufficient_limit_is_kept(self) -> None:
        self.assertEqual(self.limited(2000, 2000), "2000 2000 2000")


class Clients(SynchronousTestCase):
    def room(self, configured: int, limit: int) -> int:
        return int(
            output_of(
                "import resource as r; from project_service.process import room_for_clients as room; "
                f"r.setrlimit(r.RLIMIT_NOFILE, ({limit}, {limit})); print(room({configured}))"
            )
        )

    def test_as_many_clients_as_configured_if_descriptors_allow(self) -> None:
        self.assertEqual(self.room(100, 4000), 100)

    def test_without_a_limit_the_configured_number_is_used(self) -> None:
        self.patch(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        self.assertEqual((room_for_clients(100), allow_descriptors()), (100, MAX_DESCRIPTORS))

    def test_at_least_one_client_is_allowed(self) -> None:
        self.patch(resource, "getrlimit", lambda _: (100, 100))
        self.assertEqual(room_for_clients(10_000), 1)

    def test_otherwise_two_descriptors_are_kept_for_each_client(self) -> None:
        self.assertEqual(self.room(10_000, 1256), 500)


class Threads(SynchronousTestCase):
    def test_threads_give_way_to_the_one_that_made_their_pool(self) -> None:
        before = os.getpriority(os.PRIO_PROCESS, 0)
        # A process that gives way to others itself, as by ``Nice`` of its unit, may not go back.
        for more in (0, 5, 12):
            self.assertEqual(self.difference(more), min(NICENESS, 19 - min(19, before + more)))

    def difference(self, more: int) -> int:
        """How much nicer a thread of the pool is in a process that is so much nicer itself."""
        program = (
            "import os, threading as t; from twisted.python.threadpool import ThreadPool; "
            f"os.nice({more}); "
            "from project_service import process; pool = ThreadPool(0, 1); process.let_threads_yield(pool); "
            "seen = []; look = lambda: seen.append(os.getpriority(os.PRIO_PROCESS, t.get_native_id())); "
            "look(); pool.start(); pool.callInThread(look); pool.stop(); print(seen[1] - seen[0])"
        )
        return int(output_of(program))


class Settled(SynchronousTestCase):
    def test_objects_loaded_at_the_start_are_excluded_from_garbage_collection(self) -> None:
        program = (
            "import gc, project_service.http.edge; from project_service import process; process.tune_memory()"
        )
        self.assertLess(int(output_of(f"{program}; print(len(gc.get_objects()))")), 1000)


READS = """
import resource, socket
from project_service.process import tune_memory
from project_service.storage.s3.connection import READ_BYTES

tune_memory()
store, ours = socket.socketpair()
full = [bytearray(READ_BYTES) for _ in range(100)]  # the only gap that is left is the end of the heap

def read():
    store.send(bytes(5000))
    return ours.recv(READ_BYTES)

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

kept, before = read(), faults()
for _ in range(1000):
    kept = read()
print(faults() - before)
"""


class Reads(SynchronousTestCase):
    def test_the_buffer_of_a_large_read_is_not_requested_from_the_system_each_time(self) -> None:
        if platform.libc_ver()[0] != "glibc":
            raise SkipTest("only glibc has mallopt and malloc_trim")
        self.assertLess(int(output_of(READS)), 1000)


class GivenBack(SynchronousTestCase):
    def test_freed_memory_below_living_objects_is_returned_to_the_system(self) -> None:
        if platform.libc_ver()[0] != "glibc":
            raise SkipTest("only glibc has mallopt and malloc_trim")
        program = (
            "from benchmarks.memory import resident; from project_service.process import trim_memory, tune_memory; "
            "import os; tune_memory(); many = [bytearray(200_000) for _ in range(400)]; last = many.pop(); del many; "
            "before = resident(os.getpid()); trim_memory(); print(before - resident(os.getpid()))"
        )
        self.assertGreater(float(output_of(program)), 50)
