"""The device a run uses: `cpu`, `cuda`, or `npu`, and how to make it repeat itself."""

from __future__ import annotations

import os
import subprocess
import sys

import torch

from faultproxy.analyzer.errors import InputError

_PROBE = "import torch, torch_npu; raise SystemExit(0 if torch.npu.is_available() else 3)"


def device(name: str = "cpu") -> torch.device:
    """The device by name. Raises InputError where it is missing, with what to do.

    torch_npu breaks `import torch` itself where CANN is not installed, so it is probed in another process first.
    """
    kind = name.partition(":")[0]
    if kind == "cuda" and not torch.cuda.is_available():
        raise InputError(f"device {name!r}: this torch ({torch.__version__}) sees no CUDA device; use --device cpu")
    if kind == "npu":
        probe = subprocess.run([sys.executable, "-c", _PROBE], check=False, capture_output=True, text=True)
        if probe.returncode:
            reason = (probe.stderr.strip().splitlines() or ["no NPU is visible"])[-1]
            raise InputError(
                f"device {name!r}: torch_npu does not work here ({reason}); install CANN and pip install 'faultproxy[npu]', or use --device cpu"
            )
        import torch_npu  # noqa: F401
    elif kind not in ("cpu", "cuda"):
        raise InputError(f"{name!r} is no device; allowed are cpu, cuda, npu, with an index if wanted (cuda:1)")
    return torch.device(name)


def deterministic() -> None:
    """Ask torch for kernels that repeat themselves; CPU results still depend on CPU type and thread count."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    os.environ.setdefault("HCCL_DETERMINISTIC", "true")
    torch.use_deterministic_algorithms(True, warn_only=True)
