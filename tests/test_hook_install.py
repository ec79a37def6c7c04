"""The snippets of `faultproxy hook install` are whole, and change no exit code. benchmarks/platforms.py runs them for real."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from faultproxy.analyzer.cli import faultproxy
from faultproxy.analyzer.commands.hook import PLATFORMS


def printed(platform: str) -> str:
    ended = CliRunner().invoke(faultproxy, ["hook", "install", platform])
    assert ended.exit_code == 0
    return ended.output


@pytest.mark.parametrize("platform", PLATFORMS)
def test_every_snippet_runs_the_hook_and_says_how_to_use_it(platform: str) -> None:
    text = printed(platform)
    assert "hook run --job-dir" in text and text.splitlines()[0 if platform in ("kubernetes", "volcano") else 1].startswith("# faultproxy")  # fmt: skip
    assert text.isascii() and text.endswith("\n") and "\t" not in text


@pytest.mark.parametrize("platform", ["slurm", "torchrun", "ray"])
def test_scripts_are_sound_bash(platform: str) -> None:
    assert subprocess.run(["bash", "-n"], input=printed(platform), text=True, check=False).returncode == 0


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with a launcher that ends with 7 and a hook that writes down what it was asked, and fails."""
    for name, lines in {"launcher": 'echo "$@"; exit 7', "hook": f'echo "$@" >> {tmp_path}/asked; exit 9'}.items():
        path = tmp_path / name
        path.write_text(f"#!/bin/sh\n{lines}\n")
        path.chmod(0o755)
    for platform in ("slurm", "torchrun", "ray"):
        (tmp_path / platform).write_text(printed(platform))
    return tmp_path


def bash(place: Path, *words: str, **environment: str) -> int:
    held = {**os.environ, "FAULTPROXY": str(place / "hook"), **environment}
    return subprocess.run(["bash", *words], env=held, cwd=place, check=False, capture_output=True).returncode


@pytest.mark.parametrize(("platform", "variable"), [("torchrun", "TORCHRUN"), ("ray", "RAY")])
def test_a_wrapper_ends_as_what_it_wraps(place: Path, platform: str, variable: str) -> None:
    assert bash(place, platform, str(place / "a job"), "train.py", **{variable: str(place / "launcher")}) == 7
    assert f"--job-dir {place}/a job --exit-code 7" in (place / "asked").read_text()


def test_only_the_first_node_runs_the_hook(place: Path) -> None:
    assert bash(place, "torchrun", str(place / "job"), "x", TORCHRUN=str(place / "launcher"), NODE_RANK="3") == 7
    assert not (place / "asked").exists()


@pytest.mark.parametrize(("lines", "code"), [("exit 5", 5), ("true", 0), ("kill -TERM $$; sleep 5", 143)])
def test_a_job_script_ends_as_it_would_have(place: Path, lines: str, code: int) -> None:
    (place / "job.sh").write_text(f"source {place}/slurm\n{lines}\n")
    assert bash(place, "job.sh", SLURM_JOB_ID="12") == code
    assert f"--exit-code {code} --job-id 12" in (place / "asked").read_text()


@pytest.mark.parametrize(("status", "code"), [("768", "3"), ("9", "137"), ("15", "143"), ("0", "0")])
def test_an_epilog_never_drains_a_node_and_splits_status_and_signal(place: Path, status: str, code: str) -> None:
    words = {"SLURM_JOB_ID": "12", "SLURM_JOB_WORK_DIR": str(place), "SLURM_JOB_EXIT_CODE": status, "SLURM_JOB_USER": "root"}  # fmt: skip
    assert bash(place, "slurm", **words) == 0
    assert f"--exit-code {code} --job-id 12" in (place / "asked").read_text()
