"""The page at ``/`` of a running service: in Chromium, and its commands in a shell."""

from __future__ import annotations

import html
import json
import re
import subprocess
from pathlib import Path

import requests

from tests.live.daemon import Daemon
from tests.live.programs import program
from tests.live.service.documented_clients import browser
from tests.live.services import WithDatabase


def test_a_browser_shows_it_and_its_commands_work(with_database: WithDatabase, tmp_path: Path) -> None:
    program("curl")
    with Daemon(with_database(tmp_path / "var")) as daemon:
        url = daemon.wait_until_ready()
        text = requests.get(url, headers={"Accept": "text/html"}, timeout=30).text
        anon_key = json.loads((tmp_path / "var" / "credentials.json").read_text())["anon_key"]
        (steps,) = re.findall("<pre><code>(.*?)</code></pre>", text, re.DOTALL)
        commands = html.unescape(steps).replace("psk_anon_…", anon_key).replace("curl -s", "curl -sSf")
        done = subprocess.run(["bash", "-euc", commands], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        for expected in ('"email":"ann@example.com"', '"folders":', '"swagger"'):
            assert expected in done.stdout.replace('": ', '":'), done.stdout
        flags = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}"]
        shown = subprocess.run(
            [browser(), *flags, "--dump-dom", url], capture_output=True, text=True, check=True, timeout=300
        )
    assert len(re.findall('class="ready">ready', shown.stdout)) == 4, shown.stdout
