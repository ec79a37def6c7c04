"""What ships works without the repository, and `analyze` stays light."""

from __future__ import annotations

import ast
import email
import os
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SHIPPED = ("analyzer", "proxy", "rules")
#: Installed with us or beside us, and too slow to import for a command that reads a 2 kB log.
HEAVY = ("torch", "sklearn", "pandas", "lightgbm", "numpy", "scipy", "pyarrow", "rich", "zstandard", "jsonschema")
LOG = "".join(f"step:{n} - actor/pg_loss:{'nan' if n > 8 else 0.1} - actor/grad_norm:1.0\n" for n in range(1, 11))


def _files(folder: str) -> list[str]:
    """Every file that a user needs: all but caches and the rules' test cases."""
    found = (path for path in (ROOT / folder).rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return sorted(
        path.relative_to(ROOT).as_posix() for path in found if not path.name.endswith((".cases.toml", ".pyc"))
    )


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    code = "import sys; from hatchling.build import build_wheel; print(build_wheel(sys.argv[1]))"
    built = subprocess.run(
        [sys.executable, "-c", code, str(folder)], check=True, cwd=ROOT, capture_output=True, text=True
    )
    return folder / built.stdout.split()[-1]


def _unpacked(wheel: Path, folder: Path) -> dict[str, str]:
    """An environment in which `faultproxy` is the wheel's and no file of the repository is near."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
    return {**os.environ, "PYTHONPATH": str(folder / "site")}


def test_the_wheel_holds_every_file_of_the_shipped_folders(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        held = set(archive.namelist())
    wanted = {f"faultproxy/{name}" for folder in SHIPPED for name in _files(folder)}
    assert wanted - held == set()
    assert {"faultproxy/__init__.py", "faultproxy/py.typed"} <= held
    assert any(name.endswith("licenses/LICENSE") for name in held)
    for suffix in (".py", ".sql", ".toml", ".schema.json"):
        assert any(name.endswith(suffix) for name in wanted), suffix


def test_the_wheel_holds_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert {name.split("/")[0].partition("-")[0] for name in names} == {"faultproxy"}
    assert [name for name in names if name.endswith(".cases.toml") or "__pycache__" in name] == []


def test_the_wheel_says_what_the_project_says(wheel: Path) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    with zipfile.ZipFile(wheel) as archive:
        info = next(name.rpartition("/")[0] for name in archive.namelist() if name.endswith("/METADATA"))
        metadata = email.message_from_string(archive.read(f"{info}/METADATA").decode())
        scripts = archive.read(f"{info}/entry_points.txt").decode()
    assert (metadata["Name"], metadata["Version"]) == ("faultproxy", project["version"])
    assert metadata["Requires-Python"] == ">=3.11"
    for name, target in project["scripts"].items():
        assert f"{name} = {target}" in scripts


def test_the_version_is_said_once_more_in_the_package_and_agrees() -> None:
    import faultproxy

    assert faultproxy.__version__ == tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


def test_the_wheel_alone_diagnoses_a_log(wheel: Path, tmp_path: Path) -> None:
    environment = _unpacked(wheel, tmp_path)
    (tmp_path / "run.log").write_text(LOG)
    code = (
        "import faultproxy, sys; print(faultproxy.__file__, file=sys.stderr); sys.argv = ['analyze', 'run.log']\n"
        "from faultproxy.analyzer.cli import analyze_main; analyze_main()"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], check=False, cwd=tmp_path, env=environment, capture_output=True, encoding="utf-8"
    )
    assert str(tmp_path) in ended.stderr.split("\n")[0]
    assert ended.returncode == 0 and ended.stdout.startswith("FAILED  nonfinite_loss"), ended.stderr


@pytest.mark.parametrize("format_", ["text", "json", "markdown"])
def test_analyze_imports_nothing_heavy(format_: str, tmp_path: Path) -> None:
    (tmp_path / "run.log").write_text(LOG)
    code = (
        "import sys; sys.argv = ['analyze', 'run.log', '--format', sys.argv[1]]\n"
        "from faultproxy.analyzer.cli import analyze_main\n"
        "try: analyze_main()\n"
        "except SystemExit as ended: assert not ended.code, ended.code\n"
        f"print('loaded:', *(name for name in {HEAVY!r} if name in sys.modules), file=sys.stderr)"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code, format_], check=True, cwd=tmp_path, capture_output=True, encoding="utf-8"
    )
    assert ended.stderr.split("\n")[-2] == "loaded:"


def test_help_does_not_even_load_the_engine() -> None:
    code = "import sys; import faultproxy.analyzer.cli; print(*(n for n in ('duckdb', 'orjson') if n in sys.modules))"
    ended = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert ended.stdout.strip() == ""


def test_all_code_is_python_3_11() -> None:
    """Real on Python 3.11; on later ones the parser refuses what it can (`ruff` with target py311 sees the rest)."""
    for folder in (*SHIPPED, "tests"):
        for path in (ROOT / folder).rglob("*.py"):
            ast.parse(path.read_text(encoding="utf-8"), str(path), feature_version=(3, 11))


def test_the_pinned_torch_is_one_that_the_extra_allows() -> None:
    from packaging.requirements import Requirement

    pinned = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line and not line.startswith("#")]
    extra = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["proxy"]
    assert pinned == ["torch==2.13.0"]
    assert Requirement(extra[0]).specifier.contains(pinned[0].partition("==")[2])


def test_the_gate_runs_the_readme_and_is_executable() -> None:
    gate = ROOT / ".ci" / "run"
    assert os.access(gate, os.X_OK) and "set -euo pipefail" in gate.read_text()
    assert subprocess.run(["bash", "-n", str(gate)], check=False).returncode == 0
