"""Debian's buildah and podman, as a machine needs them that lets nobody do much: root, but without systemd, and maybe
with both kinds of control groups at once. Containers are as isolated as elsewhere, but nothing limits their memory.
"""

from __future__ import annotations

import contextlib
import os
import resource
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from attrs import frozen

from tests.live.daemon import ROOT
from tests.live.programs import PATH, program

# The mounts are seen by nobody outside of this process, which waits for the end of its input.
HOLDER = "mount -t cgroup2 none /sys/fs/cgroup && ip link set lo up && echo made && exec cat"
# So that pip finds what it finds on this machine.
FOR_PIP = ("/etc/pip.conf", "/etc/ssl/certs/ca-certificates.crt")
COMMAND_SECONDS = 600
# On a disk, since the layers take more than a gigabyte.
PLACE = "/var/tmp"
IMAGE = "localhost/project-service"


@frozen
class Engine:
    """``mount`` and ``network`` are namespaces in which it works: all of it in ``mount``, and in ``network`` what is
    asked to be apart from this machine's own loopback."""

    holder: int
    environ: Mapping[str, str]

    def command(self, *argv: str, apart: bool = False) -> list[str]:
        network = [f"--net=/proc/{self.holder}/ns/net"] if apart else []
        return [program("nsenter"), f"--mount=/proc/{self.holder}/ns/mnt", *network, f"--wd={ROOT}", *argv]

    def run(self, *argv: str, apart: bool = False, check: bool = True, given: str = "") -> str:
        """What the command prints. Fails if it does not end with 0, unless that is not to be checked."""
        done = subprocess.run(
            self.command(*argv, apart=apart),
            env=self.environ,
            capture_output=True,
            text=True,
            input=given,
            timeout=COMMAND_SECONDS,
            check=False,
        )
        assert done.returncode == 0 or not check, (
            f"{argv[:3]} ended with {done.returncode}\n{done.stdout}\n{done.stderr}"
        )
        return done.stdout.strip()

    def path(self, inside: str) -> Path:
        """Where this process finds what the engine has mounted."""
        return Path(f"/proc/{self.holder}/root{inside}")

    def starts(self, *argv: str) -> subprocess.Popen[bytes]:
        """The command, which goes on meanwhile."""
        return subprocess.Popen(self.command(*argv), env=self.environ, stdout=subprocess.DEVNULL)


@contextmanager
def engine() -> Iterator[Engine]:
    """Skips the test where it cannot be had."""
    for name in (
        "buildah",
        "podman",
        "crun",
        "netavark",
        "aardvark-dns",
        "debootstrap",
        "nsenter",
        "ip",
        "iptables",
    ):
        program(name)
    if os.geteuid() != 0:
        pytest.skip("these tests make containers as root")
    with TemporaryDirectory(dir=PLACE, prefix="containers-") as directory, _namespaces() as holder:
        folder = Path(directory)
        _configure(folder)
        environ = {
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{PATH}",
            "HOME": directory,
            "TMPDIR": directory,
            "CONTAINERS_CONF": str(folder / "containers.conf"),
            "CONTAINERS_STORAGE_CONF": str(folder / "storage.conf"),
        }
        made = Engine(holder, environ)
        try:
            yield made
        finally:
            for apart in (False, True):
                made.run("podman", "rm", "--all", "--force", "--time", "5", apart=apart, check=False)
            made.run("buildah", "rm", "--all", check=False)


@contextmanager
def _namespaces() -> Iterator[int]:
    holder = subprocess.Popen(
        ["unshare", "--mount", "--net", "sh", "-c", HOLDER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert holder.stdin is not None
    assert holder.stdout is not None
    try:
        said = holder.stdout.readline().strip()
        if said != "made":
            pytest.skip(f"there can be no namespaces here: {said}")
        yield holder.pid
    finally:
        with contextlib.suppress(BrokenPipeError):
            holder.stdin.close()
        holder.wait(30)
        holder.stdout.close()


def _configure(folder: Path) -> None:
    # By default as many as root may give, which it may not do everywhere.
    files, processes = (resource.getrlimit(one)[1] for one in (resource.RLIMIT_NOFILE, resource.RLIMIT_NPROC))
    nofile, nproc = _at_most(files, 65536), _at_most(processes, 4096)
    (folder / "containers.conf").write_text(
        "[containers]\n"
        f'default_ulimits = ["nofile={nofile}:{nofile}", "nproc={nproc}:{nproc}"]\n'
        'cgroups = "disabled"\n'
        '[network]\nnetwork_backend = "netavark"\n'
        f'[engine]\ncgroup_manager = "cgroupfs"\nevents_logger = "file"\nruntime = "crun"\ntmp_dir = "{folder}/tmp"\n'
    )
    (folder / "storage.conf").write_text(
        f'[storage]\ndriver = "{_driver()}"\ngraphroot = "{folder}/graph"\nrunroot = "{folder}/run"\n'
    )


def _at_most(limit: int, most: int) -> int:
    return most if limit == resource.RLIM_INFINITY else min(limit, most)


def _driver() -> str:
    """Overlays if this machine's own files are not one already; else whole copies, which take longer."""
    kind = subprocess.run(
        ["stat", "--file-system", "--format=%T", "/var/tmp"], capture_output=True, text=True, check=True
    )
    return "vfs" if "overlay" in kind.stdout else "overlay"


def build_base(engine: Engine, name: str) -> None:
    """A small Debian with Python, from its packages."""
    made = engine.run("buildah", "from", "scratch")
    root = engine.run("buildah", "mount", made)
    # In memory, because dpkg waits for the disk with each file; with what the Containerfile would fetch anyway.
    script = """
    mount -t tmpfs none /mnt
    debootstrap --variant=minbase --include=ca-certificates,python3,python3-pip,tini bookworm /mnt
    rm -rf /mnt/var/cache/apt/archives/*.deb /mnt/var/lib/apt/lists/*
    umount -q /mnt/proc /mnt/sys || true
    cp -a /mnt/. "$1"
    umount -l /mnt
    """
    engine.run("sh", "-ec", script, "sh", root)
    engine.run("buildah", "umount", made)
    engine.run("buildah", "commit", "--quiet", "--rm", made, name)


def build(engine: Engine, base: str, extras: str) -> None:
    """The image of the checkout, by its ``Containerfile``."""
    volumes = [f"--volume={path}:{path}:ro" for path in FOR_PIP if Path(path).exists()]
    arguments = [f"--build-arg=BASE={base}", f"--build-arg=EXTRAS={extras}"]
    how = ["--quiet", "--isolation=chroot", "--network=host", "--format=docker"]
    engine.run("buildah", "build", *how, *volumes, *arguments, f"--tag={IMAGE}", str(ROOT))
