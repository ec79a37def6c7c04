"""Ascend's error codes as data: what a code of CANN's runtime, HCCL, or torch_npu means for a training run.

A code is a row (kind, meaning, why that kind). Sources: CANN rt_error_codes.h (six digits), the HCCL and HCCP error
lists of cann-hcomm (EI, EJ), Ascend/pytorch docs on torch_npu's error codes (ERRxxxxx). A code of a known family that
has no row keeps the family's kind: what only reports another error (inner errors, torch_npu's frame) is a family too.
"""

from __future__ import annotations

from typing import NamedTuple

from faultproxy.analyzer.lazy import lazy


class Code(NamedTuple):
    """What a code says (`meaning` stands in the event's text) and why it is of its kind."""

    kind: str
    meaning: str
    why: str


_PEER = "the rank that waits reports it; the one that did not come is the culprit"
_SETUP = "said before or while the communicator is built, from what was configured"
_LINK = "the network between two devices, or a peer that is gone"
_KERNEL = "an operator's kernel ran into it on the device: shape, index, memory, or the operator itself"
_MEMORY = "an allocation failed"
_HARDWARE = "the device's memory or chip itself"
_CALL = "the program called the runtime in a way it does not allow"
FRAME = "a frame around the error: names the component that gave up, not the cause"

CODES = {
    # HCCL and HCCP.
    "EI0001": Code("collective_setup", "an environment variable of HCCL is invalid", _SETUP),
    "EI0002": Code("collective_timeout", "a collective's notify wait timed out", _PEER),
    "EI0003": Code("collective_error", "a collective was called with an invalid argument", _CALL),
    "EI0004": Code("collective_setup", "the rank table cannot be parsed", _SETUP),
    "EI0005": Code("collective_mismatch", "ranks call a collective with different arguments", "the ranks run different branches or batches"),
    "EI0006": Code("collective_timeout", "a socket to another rank was not up in time", _PEER),
    "EI0007": Code("collective_error", "HCCL ran out of a resource", "streams, notifies, or memory of the library"),
    "EI0008": Code("collective_setup", "ranks run different versions of HCCL", _SETUP),
    "EI0009": Code("link_error", "the transport to a peer cannot be initialised", _LINK),
    "EI0010": Code("link_error", "peer-to-peer communication failed", _LINK),
    "EI0011": Code("out_of_memory", "HCCL cannot allocate device memory", _MEMORY),
    "EI0012": Code("collective_error", "an SDMA copy of a collective failed", "the link, a peer that is gone, or memory freed too early"),
    "EI0013": Code("link_error", "a RoCE completion with an error: retransmission ran out", _LINK),
    "EI0014": Code("collective_setup", "a value in the rank table is invalid", _SETUP),
    "EI0015": Code("collective_timeout", "not every rank reached the root while the communicator was built", _PEER),
    "EI0016": Code("collective_setup", "a value in the configuration of HCCL is invalid", _SETUP),
    "EI0017": Code("collective_setup", "an entry is missing in the rank table", _SETUP),
    "EI0018": Code("link_error", "a UB completion with an error", _LINK),
    "EI0019": Code("collective_setup", "the host's port is taken", _SETUP),
    "EI0020": Code("collective_setup", "the NPU's port is taken", _SETUP),
    "EJ0001": Code("collective_setup", "the HCCP process cannot start: the last run may still hold the device", _SETUP),
    "EJ0002": Code("link_error", "the network port is down", _LINK),
    "EJ0003": Code("collective_setup", "an address and port are bound already", _SETUP),
    # Runtime and operators.
    "EL0004": Code("out_of_memory", "the device is out of memory", _MEMORY),
    "EL0005": Code("device_error", "the device is busy", "another process holds it"),
    "EE1001": Code("device_error", "an argument of a runtime call is invalid", _CALL),
    "EZ1001": Code("device_error", "an operator's input is invalid", _CALL),
    "EZ3002": Code("device_error", "an operator is not supported on this device", _CALL),
    "EZ9999": Code("device_error", "an inner error of the operator or the AI core", FRAME),
    "EE9999": Code("device_error", "an inner error of the runtime", FRAME),
    "E39999": Code("device_error", "an inner error of the AI CPU or its driver", FRAME),
    # torch_npu: two digits of the module, three of the cause.
    "ERR00006": Code("out_of_memory", "torch_npu: a memory error", _MEMORY),
    "ERR02011": Code("collective_timeout", "torch_npu: a collective timed out", _PEER),
    "107000": Code("device_error", "an argument of a runtime call is invalid", _CALL),
    "107001": Code("device_error", "the device id is invalid", _CALL),
    "107002": Code("device_error", "no context is current", _CALL),
    "107003": Code("device_error", "the stream is not of the current context", _CALL),
    "107019": Code("collective_timeout", "a wait timed out", _PEER),
    "107020": Code("collective_timeout", "a task timed out", _PEER),
    "107022": Code("device_error", "tasks of the device are being aborted", FRAME),
    "107023": Code("device_error", "the stream is being aborted", FRAME),
    "207001": Code("out_of_memory", "the device is out of memory", _MEMORY),
    "207003": Code("device_error", "an AI core computation overflowed", "a value left the range of its type on the device"),
    "207016": Code("device_error", "a vector core computation overflowed", "a value left the range of its type on the device"),
    "207018": Code("out_of_memory", "the device is out of memory", _MEMORY),
    "507000": Code("device_error", "an internal error of the runtime", FRAME),
    "507010": Code("hardware_error", "the device's task scheduler lost its heartbeat", _HARDWARE),
    "507011": Code("device_error", "the execution of a model or task failed", FRAME),
    "507012": Code("collective_timeout", "the device did not report in time", _PEER),
    "507013": Code("hardware_error", "a system DMA error", _HARDWARE),
    "507014": Code("device_error", "an AI core kernel timed out", _KERNEL),
    "507015": Code("device_error", "an AI core kernel raised an exception", _KERNEL),
    "507016": Code("device_error", "an AI core kernel trapped", _KERNEL),
    "507017": Code("device_error", "an AI CPU kernel timed out", _KERNEL),
    "507018": Code("device_error", "an AI CPU kernel raised an exception", _KERNEL),
    "507034": Code("device_error", "a vector core kernel timed out", _KERNEL),
    "507035": Code("device_error", "a vector core kernel raised an exception", _KERNEL),
    "507046": Code("collective_timeout", "a stream's synchronisation timed out", _PEER),
    "507047": Code("collective_timeout", "an event's synchronisation timed out", _PEER),
    "507048": Code("collective_timeout", "an FFTS+ task timed out (a collective's wait, most often)", _PEER),
    "507049": Code("device_error", "an FFTS+ task raised an exception", _KERNEL),
    "507053": Code("hardware_error", "an uncorrectable error in the device's memory", _HARDWARE),
    "507054": Code("hardware_error", "a multi-bit ECC error in the HBM", _HARDWARE),
    "507055": Code("hardware_error", "an error in the device's memory is suspected", _HARDWARE),
    "507056": Code("link_error", "the link between devices failed", _LINK),
    "507057": Code("link_error", "an error of the remote device is suspected", _LINK),
    "507899": Code("device_error", "an internal error of the driver", FRAME),
    "507901": Code("device_error", "the host lost the device's connection", FRAME),
    "507904": Code("link_error", "a collective's retry failed", _LINK),
}  # fmt: skip

#: What a family without a row means; the longest prefix counts. torch_npu: ERR, two digits of the module (00 PTA,
#: 01 OPS, 02 DIST, 03 GRAPH, 04 PROF), three of the cause (100: a call of CANN, 200: of HCCL failed, 012 time out).
FAMILIES = {
    "EI": Code("collective_error", "an error of HCCL", _LINK),
    "EJ": Code("collective_error", "an error of HCCP", _LINK),
    "EL": Code("device_error", "an error of the runtime", FRAME),
    "EE": Code("device_error", "an error of the runtime", FRAME),
    "EZ": Code("device_error", "an error of an operator", _KERNEL),
    "E": Code("device_error", "an error of CANN", FRAME),
    "ERR02": Code("collective_error", "torch_npu: a call of HCCL failed", FRAME),
    "ERR01": Code("device_error", "torch_npu: an operator failed", FRAME),
    "ERR0": Code("device_error", "torch_npu: a call of CANN failed", FRAME),
    "5070": Code("device_error", "an error of the runtime", FRAME),
}  # fmt: skip
#: What a line with a code holds, whichever it is.
HINTS = ("EI0", "EJ0", "EL0", "EE", "EZ", "9999", "ERR0", "507", "107", "207")
#: plog (`[ERROR] HCCL(pid,process):time [file:line] ...`): healthy runs have such lines too, so the rest is a hint only.
MARKERS = (("plog_error", "[ERROR] ", r"^\[ERROR\] [A-Z][A-Z_]{1,20}\(\d{1,10},[^\n)]{1,80}\):"),)
_TEXT = lazy(
    r"(?<![\w.\-/])(?:(?P<known>E[IJ]00\d\d|EL000\d|E[A-Z1-9]9999|ERR0\d{4})(?!\w)"
    r"|(?P<family>E[A-Z1-9]\d{4})(?=\]?: |\]?:$|\)[:, ]|\[PID))"
)
_NUMBER = lazy(
    r"(?:error code(?: is)?|runtime result|ret(?:ror)?[Cc]ode(?: is)?|errorCode|ret)\s?[=:\[]{0,2}\s{0,2}(?P<number>[125]07\d{3})\b"
)


def find(line: str) -> tuple[str, Code] | None:
    """The code that names the line and what it means; of several the first that is no frame around another."""
    frame: tuple[str, Code] | None = None
    for pattern in (_TEXT, _NUMBER):
        for match in pattern.finditer(line):
            code = match[match.lastgroup or 0]
            found = CODES.get(code) or _family(code)
            if found and found.why != FRAME:
                return code, found
            if found and frame is None:
                frame = code, found
    return frame


def _family(code: str) -> Code | None:
    return next((FAMILIES[code[:size]] for size in range(len(code), 0, -1) if code[:size] in FAMILIES), None)
