"""What NCCL, Gloo, and HCCL say through their libraries and PyTorch's watchdog; HCCL's codes are rows of cann.py.

Source: pytorch/pytorch torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp and ProcessGroupWrapper.cpp.
"""

_RANK = r"(?:\bRank (?P<rank>\d{1,6})\] )?"

MARKERS = (
    ("collective_timeout", "Watchdog caught", _RANK + r"Watchdog caught collective operation timeout(?:: WorkNCCL\(SeqNum=(?P<value>\d{1,15}))?"),
    ("collective_timeout", "Timeout at NCCL", _RANK + r"Timeout at NCCL work(?:: (?P<value>\d{1,15}))?"),
    ("collective_mismatch", "mismatch between collectives", r"Detected mismatch between collectives on ranks(?:\. Rank (?P<rank>\d{1,6}) is running)?"),
    ("collective_mismatch", "check fail", r"CMD information [^\n]{1,40}check fail"),
    ("link_error", "rror ", r"\b(?:error cqe|Error CQE|ERROR CQE)\b"),
    ("collective_timeout", "establish timeout", r"socket establish timeout[^\n]{0,40}? rank\[(?P<rank>\d{1,6})\]"),
    ("flight_recorder", "light", r"(?i)(?:dump|writ)[^\n]{0,80}flight[ _]recorder|flight[ _]recorder[^\n]{0,60}(?:dump|written|saved)"),
    ("flight_recorder", "debug info", r"ProcessGroup\w{2,8} (?:preparing to dump|dumped) debug info|Finished writing [^\n]{0,80}debug info to"),
    ("collective_timeout", "imed out", r"(?:NCCL|HCCL|[Gg]loo)[^\n]{0,200}timed out"),
    ("collective_timeout", "timeout", r"(?:NCCL|HCCL|[Gg]loo|collective)[^\n]{0,200}timeout(?!\w|\s{0,3}[=:(]\s{0,3}\d|\s(?:is )?(?:set|to|of|value)\b)|notify wait timeout"),
    ("collective_timeout", "Timed out", r"Timed out (?:initializing process group|after|waiting)"),
    ("collective_timeout", "time", r"[Ss]ocket times out|reason=\[task timeout\]|fftsplus task timeout"),
    ("collective_timeout", "imeout", r"AclrtSynchronizeDeviceWithTimeout|[Ss]ocket timeout"),
    ("collective_error", "NCCL", r"NCCL error|ncclSystemError|ncclUnhandledCudaError|ncclInternalError|ncclRemoteError|NCCL WARN(?![^\n]{0,300}(?i:retry))[^\n]{0,200}(?:Call to|Connect|failed)|unhandled (?:system|cuda) error"),
    ("collective_error", "HCCL", r"HCCL[^\n]{0,200}(?:fail|error|ERR0)"),
    ("collective_error", "Hccl", r"OPS function error: Hccl"),
    ("collective_error", "Connection reset", r"Connection (?:reset|closed) by (?:remote )?peer"),
)  # fmt: skip

ASIDES = (
    ("collective_progress", "last completed", r"(?:\bRank (?P<rank>\d{1,6})\][^\n]{0,200})?[Ll]ast enqueued (?:NCCL )?work: \d{1,15}, last completed (?:NCCL )?work: (?P<value>-?\d{1,15})"),
)  # fmt: skip
