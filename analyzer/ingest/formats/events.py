"""What a process says when it dies, stalls, or skips: tracebacks, watchdogs, out of memory, hardware, elastic agents.

Each marker is a row of MARKERS: a cheap substring that must be in the line, the expression that must match, and the
event kind. The rules under rules/process give them meaning; a marker alone is never a verdict.
"""

from __future__ import annotations

import re

from faultproxy.analyzer.ingest.interface import LineFormat
from faultproxy.analyzer.ingest.log import Log

_EXCEPTION = re.compile(
    r"^(?:E\s+)?(?P<type>(?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*(?:Error|Exception|Interrupt|Exit|Killed|OutOfMemory))(?:\([\w.]+\))?(?::\s*(?P<message>.*))?$"
)
_NOISE = re.compile(r"\bignored\b|\bWARN|Retry|retrying|\bcaught\b", re.IGNORECASE)


def _m(kind: str, hint: str, pattern: str) -> tuple[str, str, re.Pattern[str]]:
    return kind, hint, re.compile(pattern)


#: (kind, substring that must be there, expression). Order matters: the first that matches names the line.
MARKERS = (
    _m("out_of_memory", "ut of memory", r"(?:CUDA|NPU|HIP|XPU|GPU|torch|cuBLAS|CUBLAS|device)[^\n]{0,200}out of memory|[Oo]ut of memory: Killed|allocate \S+ [GM]iB"),
    _m("out_of_memory", "OutOfMemoryError", r"OutOfMemoryError"),
    _m("out_of_memory", "oom-kill", r"oom-kill|oom_kill"),
    _m("out_of_memory", "OOM", r"\bOOMKilled\b|\bOOM (?:killed|kill)|Out Of Memory|node is OOM|running low on memory|Worker exit type: (?:NODE_)?OUT_OF_MEMORY"),
    _m("out_of_memory", "EL0004", r"EL0004"),
    _m("hardware_error", "ECC", r"[Uu]ncorrectable ECC|ECCUncorrectable|ECC error|multi-bit ECC"),
    _m("hardware_error", "Xid", r"\bXid\b[^\n]{0,40}?\b(?:13|31|43|45|48|61|62|63|64|68|69|74|79|92|94|95|119|120|136|140|142|143)\b"),
    _m("hardware_error", "fallen off the bus", r"fallen off the bus"),
    _m("hardware_error", "NVLink", r"NVLink[^\n]{0,200}(?:error|fatal)|(?:uncorrectable|fatal)[^\n]{0,200}NVLink"),
    _m("hardware_error", "hardware", r"(?:cuda|CUDA|NPU|GPU|device)[^\n]{0,200}hardware (?:error|failure|stack error)|hardware failure"),
    _m("hardware_error", "persistent error", r"Possible persistent error"),
    _m("hardware_error", "HBM", r"HBM[^\n]{0,200}(?:multi-bit|uncorrectable|ECC)"),
    _m("hardware_transient", "transient error", r"Possible transient error"),
    _m("hardware_error", "illegal instruction", r"CUDA error: an illegal instruction"),
    _m("application_error", "possible Application error", r"Correct result \(but possible Application error\)"),
    _m("rerun_unexpected", "Unexpected result", r"Unexpected result \S{1,80}[^\n]{0,200}message='"),
    _m("collective_timeout", "Watchdog caught", r"Watchdog caught collective operation timeout"),
    _m("collective_timeout", "timeout", r"(?:NCCL|HCCL|Gloo|gloo)[^\n]{0,200}(?:timeout|timed out)|collective[^\n]{0,200}timeout|notify wait timeout"),
    _m("collective_timeout", "Timeout at NCCL", r"Timeout at NCCL work"),
    _m("collective_timeout", "Timed out", r"Timed out (?:initializing process group|after|waiting)"),
    _m("collective_timeout", "time", r"[Ss]ocket times out|reason=\[task timeout\]|fftsplus task timeout"),
    _m("collective_timeout", "imeout", r"AclrtSynchronizeDeviceWithTimeout|[Ss]ocket timeout"),
    _m("collective_timeout", "1070", r"(?:runtime result|error code is|retCode)[ =:]{1,4}(?:107020|107021|507046)"),
    _m("collective_timeout", "507046", r"\b507046\b"),
    _m("collective_timeout", "EI000", r"EI000[26]\b"),
    _m("collective_error", "NCCL", r"NCCL error|ncclSystemError|ncclUnhandledCudaError|ncclInternalError|ncclRemoteError|NCCL WARN[^\n]{0,200}(?:Call to|Connect|failed)|unhandled (?:system|cuda) error"),
    _m("collective_error", "HCCL", r"HCCL[^\n]{0,200}(?:fail|error|ERR0)"),
    _m("collective_error", "Hccl", r"OPS function error: Hccl"),
    _m("collective_error", "EI0", r"\bEI0\d{3}\b"),
    _m("collective_error", "Connection reset", r"Connection (?:reset|closed) by (?:remote )?peer"),
    _m("device_error", "device-side assert", r"device-side assert"),
    _m("device_error", "illegal memory access", r"illegal memory access"),
    _m("device_error", "9999", r"\bE[A-Z]9999\b"),
    _m("device_error", "ERR0", r"\bERR0[0-9]{4}\b"),
    _m("device_error", "E", r"^\[?E[A-Z]\d{4}\]?:"),
    _m("device_error", "5070", r"(?:error code is|runtime result|retCode)[ =:]{1,4}5070\d\d\b"),
    _m("device_error", "Assertion `", r"Assertion `[^`\n]{1,200}` failed"),
    _m("device_error", "CUDA error", r"CUDA error: (?!out of memory)"),
    _m("device_error", "CUBLAS_STATUS", r"CUBLAS_STATUS_(?!SUCCESS)"),
    _m("segfault", "egmentation fault", r"[Ss]egmentation fault|SIGSEGV"),
    _m("segfault", "core dumped", r"core dumped"),
    _m("update_skipped", "grad_norm is not finite", r"grad_norm is not finite"),
    _m("update_skipped", "radient norm is", r"[Gg]radient norm is (?:nan|inf|not finite)"),
    _m("nonfinite_gradient_text", "grad norm", r"found (?:NaN|Inf|nan|inf) in local grad norm"),
    _m("nonfinite_text", "Invalid loss", r"Invalid loss, terminating training"),
    _m("nonfinite_text", "nan", r"(?i)\b(?:loss|grad\w*|logits?|probs?|output)\b[^\n]{0,40}\b(?:is|are|was|=|contains?|got|became|found)\b[^\n]{0,20}\bnan\b|found nan in"),
    _m("nonfinite_text", "NaN", r"(?i)\b(?:loss|grad\w*|logits?|probs?|output)\b[^\n]{0,40}\b(?:is|are|was|=|contains?|got|became)\b[^\n]{0,20}\bnan\b|found nan in"),
    _m("nonfinite_text", "contains either", r"probability tensor contains either `?inf`?, `?nan`? or element < 0"),
    _m("segfault", "us error", r"[Bb]us error"),
    _m("segfault", "insufficient shared memory", r"insufficient shared memory"),
    _m("killed", "killed by signal", r"killed by signal"),
    _m("data_error", "DataLoader worker", r"DataLoader worker[^\n]{0,200}(?:killed|exited unexpectedly)"),
    _m("data_error", "label", r"[Aa]ll labels? (?:are|were) (?:masked|-100|ignored)|no (?:valid|unmasked) labels"),
    _m("checkpoint_error", "size mismatch", r"size mismatch for \S+"),
    _m("checkpoint_error", "state_dict", r"Error\(s\) in loading state_dict|[Uu]nexpected key\(s\) in state_dict|[Mm]issing key\(s\) in state_dict"),
    _m("resumed", "heckpoint", r"(?i)(?:successfully )?loaded checkpoint|resum\w+ (?:training )?from|load(?:ing|ed) (?:model |training )?(?:state|checkpoint)s? from|continuing training from checkpoint"),
    _m("resumed", "esum", r"(?i)resum(?:e|ed|ing) (?:training )?(?:from|at) (?:step|checkpoint|iteration|global)"),
    _m("elastic_failure", "Root Cause", r"Root Cause \(first observed failure\)"),
    _m("killed", "SIGKILL", r"(?:signal|Signal|exitcode|SIGNAL)[^\n]{0,200}SIGKILL|SIGKILL \(signal 9\)"),
    _m("killed", "ActorDiedError", r"ActorDiedError|actor died unexpectedly|RayActorError"),
    _m("stopped", "SIGTERM", r"SIGTERM"),
    _m("stopped", "CANCELLED", r"CANCELLED AT|DUE TO TIME LIMIT"),
    _m("stopped", "reempt", r"(?i)\bpreempt(?:ed|ion)\b"),
    _m("stopped", "exiting program", r"\[exiting program (?:after|at)"),
    _m("stopped", "KeyboardInterrupt", r"KeyboardInterrupt"),
    _m("completed", "raining complete", r"(?i)training completed?\b|\btraining complete[.!]"),
    _m("completed", "Final validation metrics", r"Final validation metrics"),
    _m("completed", "exits successfully", r"exits? successfully"),
)  # fmt: skip
_HINTS = tuple(dict.fromkeys(hint for _, hint, _ in MARKERS)) + ("Traceback", "Error", "Exception", "Exit", "Interrupt")


def _parse(line: str, log: Log) -> bool:
    if line.startswith("Traceback (most recent call last)"):
        log.memory["traceback"] = log.line
        return True
    found = None
    if len(line) < 4000 and not line[:1].isspace():
        found = _EXCEPTION.match(line)
    for kind, hint, pattern in MARKERS:
        if hint in line and pattern.search(line):
            log.event(kind, line.strip())
            if not (found and kind in ("resumed", "completed")):
                return True
    if (
        found
        and (log.line - log.memory.get("traceback", -999) < 200 or found["message"])
        and not _NOISE.search(line[:60])
    ):
        log.event("exception", line.strip())
        return True
    return False


LINE = LineFormat("process-events", _HINTS, _parse, order=80)
