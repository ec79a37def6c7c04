"""The command line as a user meets it: what it prints, where, and with which exit code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from faultproxy.analyzer import cli

RUN = [sys.executable, "-c", "from faultproxy.analyzer.cli import analyze_main; analyze_main()"]
BAD = "".join(
    f"step:{step} - actor/pg_loss:{'nan' if step > 30 else 0.1 + step % 3 / 100} - actor/grad_norm:"
    f"{'nan' if step > 30 else 1.0} - critic/rewards/mean:0.{step % 7 + 2}\n"
    for step in range(1, 41)
)
GOOD = "".join(line + "\n" for line in BAD.split("\n") if line and "nan" not in line)


@pytest.fixture
def logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "bad.log").write_text(BAD)
    (tmp_path / "good.log").write_text(GOOD)
    monkeypatch.chdir(tmp_path)
    return tmp_path


class Called:
    """One in-process call: exit code and what it printed."""

    def __init__(self, main: Any, arguments: list[str], capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sys, "argv", ["prog", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        self.code = ended.value.code or 0
        self.out, self.err = capsys.readouterr()


@pytest.fixture
def analyze(capsys: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    return lambda *arguments: Called(cli.analyze_main, list(arguments), capsys, monkeypatch)


@pytest.fixture
def faultproxy(capsys: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    return lambda *arguments: Called(cli.main, list(arguments), capsys, monkeypatch)


# -- exit codes -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["bad.log"], 0),
        (["good.log"], 0),
        (["bad.log", "--fail-on", "failed"], 1),
        (["bad.log", "--fail-on", "inconclusive"], 1),
        (["good.log", "--fail-on", "failed"], 0),
        (["good.log", "bad.log", "--fail-on", "failed"], 1),
        (["bad.log", "--fail-on", "never"], 0),
        (["missing.log"], 2),
        (["missing.log", "--fail-on", "failed"], 2),
        ([], 2),
        (["bad.log", "--format", "pdf"], 2),
        (["bad.log", "--no-such-option"], 2),
        (["--help"], 0),
        (["--version"], 0),
    ],
    ids=lambda value: " ".join(value) or "nothing" if isinstance(value, list) else str(value),
)
def test_exit_codes(arguments: list[str], code: int, logs: Path, analyze: Any) -> None:
    called = analyze(*arguments)
    assert called.code == code
    assert bool(called.out) == (code != 2) and bool(called.err) == (code == 2)


def test_an_inconclusive_trace_matches_only_its_own_level(logs: Path, analyze: Any) -> None:
    Path("one.log").write_text("step:1 - actor/lr:1e-06 - timing_s/step:3.0\n")
    assert json.loads(analyze("one.log", "--format", "json").out)["verdict"] == "inconclusive"
    assert analyze("one.log", "--fail-on", "failed").code == 0
    assert analyze("one.log", "--fail-on", "inconclusive").code == 1


@pytest.mark.parametrize("bug", [ValueError("boom"), KeyError("k"), RecursionError(), MemoryError(), AssertionError()])
def test_a_crash_exits_3_never_1(bug: Exception, logs: Path, analyze: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise bug

    monkeypatch.setattr("faultproxy.analyzer.diagnose.diagnose", broken)
    called = analyze("bad.log", "--fail-on", "failed")
    assert called.code == 3
    assert "Traceback" in called.err and "this is a bug in faultproxy" in called.err and called.out == ""


def test_a_broken_rule_of_ours_exits_3_without_a_traceback(
    logs: Path, analyze: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from faultproxy.analyzer.errors import RuleError

    def broken(*_: Any) -> None:
        raise RuleError("rules/x.toml: line 3")

    monkeypatch.setattr("faultproxy.analyzer.diagnose.diagnose", broken)
    called = analyze("bad.log")
    assert (called.code, called.err) == (3, "error: rules/x.toml: line 3\n")


def test_an_interrupt_exits_130(logs: Path, analyze: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("faultproxy.analyzer.diagnose.diagnose", interrupted)
    assert analyze("bad.log").code == 130


# -- input and output -------------------------------------------------------------------------------------------------
def test_one_trace_is_an_object_and_several_are_an_array(logs: Path, analyze: Any) -> None:
    assert json.loads(analyze("bad.log", "--format", "json").out)["verdict"] == "failed"
    both = json.loads(analyze("bad.log", "good.log", "--format", "json").out)
    assert [(report["run"]["id"], report["verdict"]) for report in both] == [
        ("bad.log", "failed"),
        ("good.log", "healthy"),
    ]


def test_a_folder_of_runs_gives_one_report_each(logs: Path, analyze: Any) -> None:
    for name, content in (("alpha", BAD), ("beta", GOOD)):
        Path("job", name).mkdir(parents=True)
        Path("job", name, "out.log").write_text(content)
    found = json.loads(analyze("job", "--format", "json").out)
    assert [report["verdict"] for report in found] == ["failed", "healthy"]


def test_one_unreadable_file_among_good_ones_is_a_warning(logs: Path, analyze: Any) -> None:
    Path("empty.log").write_text("")
    called = analyze("bad.log", "empty.log", "--format", "json")
    assert called.code == 0 and any("empty.log" in warning for warning in json.loads(called.out)["warnings"])


def test_output_writes_the_file_and_prints_nothing(logs: Path, analyze: Any) -> None:
    called = analyze("bad.log", "--format", "json", "--output", "d.json", "--fail-on", "failed")
    assert (called.code, called.out) == (1, "")
    assert json.loads(Path("d.json").read_text())["verdict"] == "failed"


def test_output_refuses_an_existing_file_without_force(logs: Path, analyze: Any) -> None:
    Path("d.json").write_text("precious")
    called = analyze("bad.log", "--output", "d.json", "--fail-on", "failed")
    assert (called.code, called.out) == (2, "")
    assert "d.json: exists already" in called.err and "--force" in called.err
    assert Path("d.json").read_text() == "precious"
    assert analyze("bad.log", "--output", "d.json", "--force").code == 0
    assert Path("d.json").read_text().startswith("FAILED  ")


def test_output_into_a_folder_that_is_not_there_is_bad_input(logs: Path, analyze: Any) -> None:
    called = analyze("bad.log", "--output", "no/such/d.json")
    assert called.code == 2 and "cannot be written" in called.err


def test_an_error_message_lets_no_escape_sequence_of_a_name_through(logs: Path, analyze: Any) -> None:
    called = analyze("no\x1b[2Jfile")
    assert called.code == 2 and "\x1b" not in called.err and "\\x1b[2Jfile" in called.err


# -- as a process -----------------------------------------------------------------------------------------------------
def _process(*arguments: str, stdin: str | None = None, environment: dict[str, str] | None = None) -> Any:
    env = {key: value for key, value in os.environ.items() if key != "NO_COLOR"} | (environment or {})
    command = [*RUN, *arguments]
    return subprocess.run(
        command, check=False, input=stdin, capture_output=True, encoding="utf-8", env=env, timeout=120
    )


def test_stdin_is_a_trace(logs: Path) -> None:
    ended = _process("-", "--format", "json", stdin=BAD)
    report = json.loads(ended.stdout)
    assert (ended.returncode, report["verdict"], report["run"]["id"]) == (0, "failed", "stdin")
    assert report["reproduce"] == []  # stdin is gone


def test_empty_stdin_is_bad_input(logs: Path) -> None:
    ended = _process("-", stdin="")
    assert ended.returncode == 2 and "Traceback" not in ended.stderr


@pytest.mark.parametrize("flags", [[], ["--format", "json"]])
def test_a_closed_pipe_is_no_error(flags: list[str], logs: Path) -> None:
    many = ["bad.log"] * 20  # more than a pipe holds, so that the write meets the closed end
    with subprocess.Popen([*RUN, *many, *flags], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout and process.stderr
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == 0


def test_a_closed_pipe_keeps_the_answer_of_fail_on(logs: Path) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    ended = subprocess.run(
        [*RUN, "bad.log", "--fail-on", "failed"], check=False, stdout=write_end, stderr=subprocess.PIPE, text=True
    )
    os.close(write_end)
    assert (ended.returncode, ended.stderr) == (1, "")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")
def test_a_full_disk_behind_stdout_is_bad_input(logs: Path) -> None:
    with open("/dev/full", "w") as full:
        ended = subprocess.run([*RUN, "bad.log"], check=False, stdout=full, stderr=subprocess.PIPE, text=True)
    assert ended.returncode == 2 and "stdout: cannot be written" in ended.stderr and "Traceback" not in ended.stderr


def test_a_terminal_that_knows_only_ascii_gets_question_marks(logs: Path) -> None:
    ended = _process("bad.log", environment={"PYTHONIOENCODING": "ascii"})
    assert ended.returncode == 0 and ended.stdout.startswith("FAILED  nonfinite_loss ? factor")


def test_no_colour_where_stdout_is_no_terminal(logs: Path) -> None:
    assert "\x1b" not in _process("bad.log", environment={"FORCE_COLOR": "1", "TERM": "xterm-256color"}).stdout


def _on_a_terminal(environment: dict[str, str], columns: int = 80) -> str:
    """What `analyze bad.log` prints on a pseudo-terminal."""
    import fcntl
    import pty
    import struct
    import termios

    main_end, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    env = {
        k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES")
    } | environment
    with subprocess.Popen([*RUN, "bad.log"], stdin=terminal, stdout=terminal, stderr=terminal, env=env) as process:
        os.close(terminal)
        shown = b""
        while True:
            try:
                chunk = os.read(main_end, 65536)
            except OSError:  # Linux: EIO when the last writer is gone
                break
            if not chunk:
                break
            shown += chunk
        os.close(main_end)
    assert process.returncode == 0
    return shown.decode().replace("\r\n", "\n")


@pytest.mark.skipif(sys.platform == "win32", reason="pseudo-terminals are POSIX")
@pytest.mark.parametrize(
    ("environment", "coloured"),
    [
        ({"TERM": "xterm-256color"}, True),
        ({"TERM": "xterm-256color", "NO_COLOR": "1"}, False),
        ({"TERM": "dumb"}, False),
    ],
    ids=["xterm", "NO_COLOR", "dumb"],
)
def test_colour_and_width_on_a_terminal(environment: dict[str, str], coloured: bool, logs: Path) -> None:
    shown = _on_a_terminal(environment)
    assert shown.startswith("\x1b[1;31mFAILED\x1b[0m  nonfinite_loss" if coloured else "FAILED  nonfinite_loss")
    assert ("\x1b" in shown) is coloured
    if not coloured:
        assert max(map(len, shown.split("\n"))) <= 80


# -- help -------------------------------------------------------------------------------------------------------------
def test_help_says_what_it_reads_shows_examples_and_exit_codes(analyze: Any) -> None:
    shown = analyze("--help").out
    for part in ("TRACE is a file, a folder, or - for stdin", "analyze run.log", "--fail-on", "3  a bug in faultproxy"):
        assert part in shown


def test_faultproxy_alone_lists_its_commands(faultproxy: Any) -> None:
    called = faultproxy()
    assert called.code == 2 and "analyze" in called.err
    assert faultproxy("analyze", "--help").out.startswith("Usage: faultproxy analyze ")


def _commands(
    group: click.Group = cli.faultproxy, words: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Every command with the words that call it, groups included."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command, name
        yield (*words, name), command
        if isinstance(command, click.Group):
            yield from _commands(command, (*words, name))


def test_only_commands_that_exist_are_offered(faultproxy: Any) -> None:
    assert faultproxy("no-such-command").code == 2
    for words, _ in _commands():
        called = faultproxy(*words, "--help")
        assert called.code == 0 and called.out.startswith(f"Usage: faultproxy {' '.join(words)} ")


def test_every_command_has_help_and_every_option_a_text() -> None:
    for words, command in _commands():
        assert command.help, words
        for parameter in command.params:
            assert isinstance(parameter, click.Argument) or parameter.help, f"{words} {parameter.name}"
