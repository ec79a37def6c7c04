"""Records a run while it trains: a stream that survives SIGKILL, probes of a model, and hooks for training loops.

`Recorder` and `trace_of` need no torch; `probe` and `curvature` do and are imported by their own names. Nothing that
`analyze` runs imports this package.
"""

from __future__ import annotations

from faultproxy.analyzer.record.callbacks import TorchRecorder, TrackingBackend, log_raw, trainer_callback
from faultproxy.analyzer.record.stream import Recorder, trace_of

__all__ = ["Recorder", "TorchRecorder", "TrackingBackend", "log_raw", "trace_of", "trainer_callback"]
