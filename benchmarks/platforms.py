"""The snippets of `faultproxy hook install`, run: `python benchmarks/platforms.py [slurm|torchrun|ray|kubernetes|volcano|all]`.

slurm       a slurmctld and a slurmd of one node on this machine (root, Debian's slurm-wlm): the epilog, the sourced script, scancel
torchrun    two ranks, of which one dies; --torchrun names the launcher of an environment with torch
ray         a local cluster and a job that fails; --ray names the client
kubernetes, volcano
            the manifests against the published schemas (PyPI's kubernetes-validate, where it is installed), and the shell
            scripts in them as processes: the sidecar gets its SIGTERM, as the kubelet sends it

A platform that is not installed is said to be so. Each job prints the log of a run that fails and ends with exit code 3; the
hook must diagnose it, and the platform must see 3.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "fixtures"))

from generators import curves, faults

from faultproxy.proxy.lab import writers

WANTED = ("nonfinite_loss", 40)
#: Volcano's CustomResourceDefinition (config/crd/volcano/bases/batch.volcano.sh_jobs.yaml) around the pods' template.
_EVENTS = ["*", "PodPending", "PodRunning", "PodFailed", "PodEvicted", "Unknown", "TaskCompleted", "OutOfSync", "CommandIssued", "JobUpdated", "TaskFailed"]  # fmt: skip
_POLICIES = {"type": "array", "items": {"additionalProperties": False, "properties": {"action": {"type": "string"}, "event": {"enum": _EVENTS}}}}  # fmt: skip
_NUMBER, _TEXT = {"type": "integer", "minimum": 0}, {"type": "string"}
VOLCANO = {
    "additionalProperties": False,
    "properties": {
        "minAvailable": _NUMBER, "maxRetry": _NUMBER, "schedulerName": _TEXT, "policies": _POLICIES,
        "plugins": {"additionalProperties": {"type": "array", "items": _TEXT}},
        "tasks": {"items": {"additionalProperties": False, "properties": {"name": _TEXT, "replicas": _NUMBER, "policies": _POLICIES, "template": {"type": "object"}}}},
    },
}  # fmt: skip


def snippet(name: str, folder: Path) -> Path:
    """A snippet as a user would save it."""
    path = folder / name
    path.write_text(files("faultproxy.analyzer.hook").joinpath("snippets", name).read_text("utf-8"))
    path.chmod(0o755)
    return path


def setting(folder: Path) -> dict[str, str]:
    """The environment of a platform: the command `faultproxy` of this interpreter, and a log to print."""
    command = folder / "faultproxy-command"
    command.write_text(
        f'#!/bin/sh\nexec {sys.executable} -c "from faultproxy.analyzer.cli import script; script()" "$@"\n'
    )
    command.chmod(0o755)
    run = faults.nonfinite(curves.rl(3, 60), WANTED[1])
    (folder / "fails.log").write_text(writers.verl_console(run), encoding="utf-8")
    (folder / "fails.py").write_text(f"import sys, os\nif os.environ.get('RANK', '0') == '0':\n    sys.stdout.write(open({str(folder / 'fails.log')!r}).read())\n    sys.stdout.flush()\n    sys.exit(3)\nimport time\ntime.sleep(30)\n")  # fmt: skip
    return {**os.environ, "FAULTPROXY": str(command)}


def verdict(job: Path) -> str:
    """Whether the hook found what the job printed."""
    path = job / "faultproxy" / "diagnosis.json"
    if not path.exists():
        return "no diagnosis"
    report = json.loads(path.read_text())
    found = (report["failure_type"], report["first_bad_step"]) == WANTED
    names = "+".join(sorted(path.name for path in (job / "faultproxy").iterdir()))
    return f"{'right' if found else 'WRONG'} ({report['failure_type']} at {report['first_bad_step']}, job exit code {report['run']['facts']['job']['exit_code']}; {names})"  # fmt: skip


def until(test: Callable[[], bool], seconds: float = 60) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if test():
            return True
        time.sleep(0.2)
    return False


# -- Slurm ------------------------------------------------------------------------------------------------------------
def slurm(folder: Path, options: argparse.Namespace) -> list[str]:
    if shutil.which("slurmctld") is None or os.getuid():
        return ["not installed here, or not root"]
    environment = setting(folder)
    script = snippet("slurm.sh", folder)
    (folder / "epilog.sh").write_text(f"#!/bin/bash\nexport PATH=$PATH:/usr/bin:/usr/sbin FAULTPROXY={environment['FAULTPROXY']}\nexec bash {script}\n")  # fmt: skip
    (folder / "epilog.sh").chmod(0o755)
    for name in ("state", "spool"):
        (folder / name).mkdir()
    folder.chmod(0o755)
    ports = [free_port(), free_port()]
    host = socket.gethostname()
    (folder / "slurm.conf").write_text(
        f"ClusterName=hook\nSlurmctldHost={host}(127.0.0.1)\nSlurmUser=root\nSlurmctldPort={ports[0]}\nSlurmdPort={ports[1]}\n"
        f"AuthType=auth/munge\nStateSaveLocation={folder}/state\nSlurmdSpoolDir={folder}/spool\nSlurmctldPidFile={folder}/ctld.pid\n"
        f"SlurmdPidFile={folder}/d.pid\nProctrackType=proctrack/pgid\nTaskPlugin=task/none\nMpiDefault=none\nReturnToService=2\n"
        f"Epilog={folder}/epilog.sh\nPrologEpilogTimeout=300\nKillWait=30\nNodeName={host} NodeAddr=127.0.0.1 CPUs=2 State=UNKNOWN\n"
        "PartitionName=all Nodes=ALL Default=YES MaxTime=5 State=UP\n"
    )
    environment["SLURM_CONF"] = str(folder / "slurm.conf")
    if not Path("/run/munge/munge.socket.2").exists():
        Path("/run/munge").mkdir(exist_ok=True)
        shutil.chown("/run/munge", "munge", "munge")
        subprocess.run(["runuser", "-u", "munge", "--", "munged"], check=True)
    daemons = [subprocess.Popen([name, "-D"], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) for name in ("slurmctld", "slurmd")]  # fmt: skip

    def say(*command: str) -> str:
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False).stdout.strip()

    def job(name: str, lines: str) -> tuple[Path, str]:
        place = folder / name
        place.mkdir()
        (place / "job.sh").write_text(f"#!/bin/bash\n#SBATCH -o {place}/slurm-%j.out\n{lines}\n")
        return place, say("sbatch", "--parsable", "-D", str(place), str(place / "job.sh"))

    def state(number: str) -> str:
        shown = say("scontrol", "show", "job", number)
        return " ".join(word for word in shown.split() if word.startswith(("JobState=", "ExitCode=")))

    try:
        if not until(lambda: "idle" in say("sinfo", "-h", "-o", "%T"), 30):
            return [f"the cluster did not come up: {say('sinfo')}"]
        found = []
        place, number = job("epilog", f"cat {folder}/fails.log\nexit 3")
        until(lambda: (place / "faultproxy" / "diagnosis.json").exists())
        until(lambda: "COMPLETING" not in state(number))
        found.append(f"epilog: {verdict(place)}; Slurm says {state(number)}, node {say('sinfo', '-h', '-o', '%T')}")
        place, number = job("sourced", f"source {script}\ncat {folder}/fails.log\nexit 3")
        until(lambda: (place / "faultproxy" / "diagnosis.json").exists() and "RUNNING" not in state(number))
        found.append(f"sourced: {verdict(place)}; Slurm says {state(number)}")
        place, number = job("cancelled", f"source {script}\ncat {folder}/fails.log\nsleep 60 & wait")
        until(lambda: any(path.stat().st_size > 1000 for path in place.glob("slurm-*.out")))
        say("scancel", "--batch", "--signal=TERM", number)
        until(lambda: (place / "faultproxy" / "diagnosis.json").exists() and "RUNNING" not in state(number))
        found.append(f"cancelled: {verdict(place)}; Slurm says {state(number)}")
        return [*found, say("slurmctld", "-V")]
    finally:
        for daemon in daemons:
            daemon.terminate()
            daemon.wait(20)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


# -- torchrun, Ray ----------------------------------------------------------------------------------------------------
def torchrun(folder: Path, options: argparse.Namespace) -> list[str]:
    if shutil.which(options.torchrun) is None:
        return ["not installed here (--torchrun)"]
    environment = setting(folder) | {"TORCHRUN": options.torchrun}
    script, job = snippet("torchrun.sh", folder), folder / "job"
    ended = subprocess.run([script, job, "--nproc-per-node", "2", "--master-port", str(free_port()), folder / "fails.py"], env=environment, capture_output=True, text=True, check=False, timeout=120)  # fmt: skip
    return [f"{verdict(job)}; torchrun's exit code {ended.returncode}"]


def ray(folder: Path, options: argparse.Namespace) -> list[str]:
    if shutil.which(options.ray) is None:
        return ["not installed here (--ray)"]
    environment = setting(folder) | {"RAY": options.ray, "RAY_ADDRESS": "http://127.0.0.1:8265"}
    script, job = snippet("ray.sh", folder), folder / "job"
    started = subprocess.run([options.ray, "start", "--head", "--port", str(free_port()), "--num-cpus", "2", "--include-dashboard", "true", "--disable-usage-stats"], capture_output=True, text=True, check=False, timeout=120)  # fmt: skip
    if started.returncode:
        return [f"the cluster did not start: {started.stderr[-300:]}"]
    try:
        ended = subprocess.run([script, job, "--", sys.executable, folder / "fails.py"], env=environment, capture_output=True, text=True, check=False, timeout=180)  # fmt: skip
        return [f"{verdict(job)}; exit code of `ray job submit` {ended.returncode}"]
    finally:
        subprocess.run([options.ray, "stop"], capture_output=True, check=False, timeout=60)


# -- Kubernetes, Volcano ----------------------------------------------------------------------------------------------
def kubernetes(folder: Path, options: argparse.Namespace) -> list[str]:
    return manifest("kubernetes.yaml", folder)


def volcano(folder: Path, options: argparse.Namespace) -> list[str]:
    return manifest("volcano.yaml", folder)


def manifest(name: str, folder: Path) -> list[str]:
    try:
        import yaml
    except ImportError:
        return ["PyYAML is not installed here"]
    document = yaml.safe_load(snippet(name, folder).read_text())
    template = (
        document["spec"]["template"] if "template" in document["spec"] else document["spec"]["tasks"][0]["template"]
    )
    return [*schemas(document, template), containers(template["spec"], folder)]


def schemas(document: dict[str, Any], template: dict[str, Any]) -> list[str]:
    try:
        from kubernetes_validate import validate
    except ImportError:
        return ["PyPI's kubernetes-validate is not installed here"]
    whole = document
    if document["apiVersion"].startswith("batch.volcano.sh"):
        import jsonschema

        jsonschema.validate(document["spec"], VOLCANO)
        whole = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "pods"}, "spec": {"template": template}}
    return [
        f"valid, strictly, for Kubernetes {version}"
        for version in ("1.29", "1.33", "1.37")
        if validate(whole, version, strict=True)
    ]


def containers(pod: dict[str, Any], folder: Path) -> str:
    """Run the two containers' shell scripts, and end the sidecar as the kubelet does."""
    environment = setting(folder)
    binaries = folder / "bin"
    binaries.mkdir()
    (binaries / "faultproxy").symlink_to(environment["FAULTPROXY"])
    for name in ("python", "torchrun"):
        (binaries / name).write_text(f"#!/bin/sh\nexec {sys.executable} {folder}/fails.py\n")
        (binaries / name).chmod(0o755)
    job = folder / "job"
    environment |= {"PATH": f"{binaries}:{os.environ['PATH']}", "JOB_DIR": str(job), "JOB_ID": "pod", "VC_TASK_INDEX": "0", "MASTER_ADDR": "a", "MASTER_PORT": "1"}  # fmt: skip
    (sidecar,), (trainer,) = pod["initContainers"], pod["containers"]
    beside = subprocess.Popen([*sidecar["command"], *sidecar["args"]], env=environment)
    ended = subprocess.run([*trainer["command"], *trainer["args"]], env=environment, capture_output=True, check=False)
    beside.send_signal(signal.SIGTERM)
    left = beside.wait(60)
    return f"scripts: {verdict(job)}; trainer ends with {ended.returncode}, sidecar with {left}"


PLATFORMS = {"slurm": slurm, "torchrun": torchrun, "ray": ray, "kubernetes": kubernetes, "volcano": volcano}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("platform", nargs="?", choices=(*PLATFORMS, "all"), default="all")
    parser.add_argument("--torchrun", default="torchrun")
    parser.add_argument("--ray", default="ray")
    options = parser.parse_args()
    for name in PLATFORMS if options.platform == "all" else (options.platform,):
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            for line in PLATFORMS[name](Path(folder), options):
                print(f"{name:<11}{line}", flush=True)


if __name__ == "__main__":
    main()
