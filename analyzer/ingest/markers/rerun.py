"""Megatron's rerun state machine: it repeats a step whose result looks wrong, here and then on another GPU.

What it finds separates a transient hardware error (not reproducible on the same GPU) from a persistent one
(reproducible there, not elsewhere) and from the program's own error (reproducible everywhere). The same verdicts stand
in its tracker file (`ts=... node=... jobID=... status=...`), whose status is written as a name or as a value.
Source: NVIDIA/Megatron-LM megatron/core/rerun_state_machine.py (exit codes 16 and 17).
"""

_AT = r"(?:\b[Rr]ank (?P<rank>\d{1,6}), node [^\n,]{1,80}, device \S{1,12}, iteration #?(?P<step>\d{1,15}): )?"
_ON = r"Unexpected result \S{1,80} on rank (?P<rank>\d{1,6}) at iteration #(?P<step>\d{1,15})"
_TRACKER = r"^ts=[^\n]{1,200} jobID=\S{1,80} rank=(?P<rank>\d{1,6}) iteration=(?P<step>\d{1,15}) status=(?:RerunValidationStatus\.)?"
#: What it also rejects: a finite loss or gradient ten times the largest before.
_SPIKE = r"[^\n]{0,80}\(?message='(?:Spiky|[^'\n]{0,80}\blarge\b)"

MARKERS = (
    ("hardware_transient", "Possible transient error", _AT + r"Possible transient error"),
    ("hardware_error", "Possible persistent error", _AT + r"Possible persistent error"),
    ("application_error", "possible Application error", _AT + r"Correct result \(but possible Application error\)"),
    ("rerun_reproducible", "First rerun: unexpected", _AT + r"First rerun: unexpected result is reproducible"),
    ("rerun_spike", "Unexpected result", _ON + _SPIKE),
    ("rerun_spike", "Unexpected result", _AT + r"Unexpected result \S{1,80}" + _SPIKE),
    ("rerun_unexpected", "Unexpected result", _ON),
    ("rerun_unexpected", "Unexpected result", _AT + r"Unexpected result \S{1,80}[^\n]{0,200}message='"),
    ("rerun_exit", "establish a diagnostic", r"[Ee]xiting now\. Please resume the job from the (?:same )?checkpoint", 16.0),
    ("rerun_exit", "and establish a diagnostic", r"[Pp]lease resume the job from the (?:same )?checkpoint", 16.0),
    ("rerun_exit", "further examination is needed", r"Exiting now\. A checkpoint at the last iteration", 17.0),
    ("rerun_spike", " jobID=", _TRACKER + r"(?i:rerun_disabled|initial_run)\b" + _SPIKE),
    ("rerun_unexpected", " jobID=", _TRACKER + r"(?i:rerun_disabled|initial_run)\b"),
    ("rerun_reproducible", " jobID=", _TRACKER + r"(?i:first_rerun_reproducible)\b"),
    ("hardware_transient", " jobID=", _TRACKER + r"(?i:first_rerun_not_reproducible)\b"),
    ("hardware_error", " jobID=", _TRACKER + r"(?i:second_rerun_not_reproducible)\b"),
    ("application_error", " jobID=", _TRACKER + r"(?i:second_rerun_reproducible)\b"),
)  # fmt: skip
