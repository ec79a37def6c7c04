"""What the machine says: memory, hardware, the device's own errors, signals, storage.

Sources: NVIDIA Xid list, pytorch/pytorch CUDA exceptions, Linux kernel oom-killer; CANN's codes are rows of cann.py.
"""

MARKERS = (
    ("out_of_memory", "ut of memory", r"(?:CUDA|NPU|HIP|XPU|GPU|torch|cuBLAS|CUBLAS|device)[^\n]{0,200}out of memory|[Oo]ut of memory: Killed|allocate \S+ [GM]iB"),
    ("out_of_memory", "OutOfMemoryError", r"OutOfMemoryError"),
    ("out_of_memory", "oom_kill", r"\boom_kill\b"),
    ("out_of_memory", "oom-kill", r"oom-kill"),
    ("out_of_memory", "OOM", r"\bOOM (?:killed|kill\b)|Out Of Memory|node is OOM"),
    ("hardware_error", "ECC", r"[Uu]ncorrectable ECC|ECCUncorrectable|ECC error|multi-bit ECC"),
    ("hardware_error", "Xid", r"\bXid\b[^\n]{0,40}?\b(?:13|31|43|45|48|61|62|63|64|68|69|74|79|92|94|95|119|120|136|140|142|143)\b"),
    ("hardware_error", "fallen off the bus", r"fallen off the bus"),
    ("hardware_error", "NVLink", r"NVLink[^\n]{0,200}(?:error|fatal)|(?:uncorrectable|fatal)[^\n]{0,200}NVLink"),
    ("hardware_error", "hardware", r"(?:cuda|CUDA|NPU|GPU|device)[^\n]{0,200}hardware (?:error|failure|stack error)|hardware failure"),
    ("hardware_error", "HBM", r"HBM[^\n]{0,200}(?:multi-bit|uncorrectable|ECC)"),
    ("hardware_error", "illegal instruction", r"CUDA error: an illegal instruction"),
    ("device_error", "device-side assert", r"device-side assert"),
    ("device_error", "illegal memory access", r"illegal memory access"),
    ("device_error", "Assertion `", r"Assertion `[^`\n]{1,200}` failed"),
    ("device_error", "CUDA error", r"CUDA error: (?!out of memory)"),
    ("device_error", "CUBLAS_STATUS", r"CUBLAS_STATUS_(?!SUCCESS)"),
    ("segfault", "egmentation fault", r"[Ss]egmentation fault"),
    ("segfault", "SIGSEGV", r"SIGSEGV"),
    ("segfault", "core dumped", r"core dumped"),
    ("segfault", "us error", r"\b[Bb]us error"),
    ("segfault", "insufficient shared memory", r"insufficient shared memory"),
)  # fmt: skip
