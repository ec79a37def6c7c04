"""What starts the processes and buries them: torchrun, Slurm, Ray, Kubernetes, the DeepSpeed launcher.

A launcher speaks after the fact: it names who died first (torchrun's block has a reader of its own, torchelastic.py),
and then stops the others, which is no order from outside. Sources: pytorch/pytorch torch/distributed/elastic,
SchedMD/slurm (srun, slurmstepd), ray-project/ray (raylet, gcs_node_manager), kubernetes/kubernetes (kubelet events).
"""

_SRUN = r"srun: error: [^\s:]{1,80}: tasks? (?:(?P<rank>\d{1,6})|[\d,\-]{2,200}): "

MARKERS = (
    # torchrun and DeepSpeed end the other ranks of a job in which one died.
    ("teardown", "closing signal", r"Sending process \d{1,10} closing signal SIG\w{2,6}"),
    ("teardown", "Killing subprocess", r"launch\.py[^\n]{0,40}\bKilling subprocess \d"),
    ("stopped", "death signal", r"Received (?:\d{1,3}|Signals\.SIG(?:TERM|INT|HUP)) death signal", 15.0),
    ("stopped", "SignalException", r"SignalException: Process \d{1,10} got signal: (?:1|2|15)\b", 15.0),
    ("killed", "exitcode: -9", r"failed \(exitcode: -9\) local_rank: \d", -9.0),
    ("segfault", "exitcode: -11", r"failed \(exitcode: -11\) local_rank: \d", -11.0),
    ("rank_exit", "local_rank: ", r"failed \(exitcode: (?P<value>-?\d{1,3})\) local_rank: \d"),
    ("killed", "return code = -9", r"exits with return code = -9\b", -9.0),
    ("rank_exit", "return code = ", r"exits with return code = (?P<value>-?[1-9]\d{0,2})\b"),
    # Slurm: the task is the rank.
    ("out_of_memory", "srun: error", _SRUN + r"Out Of Memory"),
    ("killed", "srun: error", _SRUN + r"Killed", 137.0),
    ("segfault", "srun: error", _SRUN + r"(?:Segmentation fault|Bus error)"),
    ("teardown", "srun: error", _SRUN + r"Terminated"),
    ("rank_exit", "srun: error", _SRUN + r"Aborted", 134.0),
    ("rank_exit", "srun: error", _SRUN + r"Exited with exit code (?P<value>[1-9]\d{0,2})\b"),
    ("out_of_memory", "oom", r"Detected [1-9]\d{0,5} oom[-_]kill event|\boom[-_]kill(?:er)?[: ](?!disabled|score)"),
    # The shell, of a child that a signal ended.
    ("killed", "Killed", r"^\s{0,8}Killed\s{0,8}$|: line \d{1,6}:\s{1,8}\d{1,8} Killed\s", 137.0),
    ("out_of_memory", "exceeded memory limit", r"(?i)\b(?:job|step) [\d._]{1,30} exceeded memory limit"),
    ("stopped", "DUE TO TIME LIMIT", r"CANCELLED AT [^\n]{1,60} DUE TO TIME LIMIT|DUE TO TIME LIMIT \*\*\*"),
    ("node_failure", "DUE TO NODE FAILURE", r"CANCELLED [^\n]{0,80}DUE TO NODE FAILURE"),
    ("node_failure", "NODE_FAIL", r"(?:[Ss]tate|[Ss]tatus|[Rr]eason)\b[^\n]{0,12}NODE_FAIL\b|^\s{0,20}\d+\S{0,20}\s[^\n]{0,200}\sNODE_FAIL\b"),
    ("node_failure", "Node failure on", r"\b(?:srun|salloc|slurmstepd|slurmctld): (?:error: )?[^\n]{0,60}Node failure on "),
    ("out_of_memory", "OUT_OF_ME", r"(?:[Ss]tate[=: ]{1,12}|^\s{0,20}\d+\S{0,20}\s[^\n]{0,200}\s)OUT_OF_ME(?:MORY\b|\+)"),
    ("stopped", "TIMEOUT", r"(?:[Ss]tate[=: ]{1,12}|^\s{0,20}\d+\S{0,20}\s[^\n]{0,200}\s)TIMEOUT\b"),
    ("stopped", "PREEMPT", r"\bPREEMPT(?:ED|ION)\b"),
    ("stopped", "CANCELLED", r"CANCELLED AT"),
    # Ray. Its message of a dead worker lists what may have happened, memory among it: that list is no finding.
    ("out_of_memory", "OUT_OF_MEMORY", r"Worker exit type: (?:NODE_)?OUT_OF_MEMORY|\bNODE_OUT_OF_MEMORY\b"),
    ("out_of_memory", "running low on memory", r"(?:killed|node)[^\n]{0,80}running low on memory"),
    ("out_of_memory", "killed due to memory pressure", r"\b[1-9]\d{0,5} Workers \(tasks / actors\) killed due to memory pressure"),
    ("node_failure", "marked dead", r"node with node id[^\n]{0,300}has been marked dead"),
    ("node_failure", "node has ", r"(?:[Oo]wner's node has crashed|actor died because its node has died|its node has (?:died|failed))"),
    ("killed", "killed while executing a task", r"[Aa] worker died or was killed while executing a task"),
    ("killed", "Worker exit type", r"Worker exit type: SYSTEM_ERROR"),
    ("killed", "ctor", r"\bActorDiedError\b|[Aa]ctor died unexpectedly|\bRayActorError\b|\bActorUnavailableError\b"),
    ("killed", "WorkerCrashedError", r"\bWorkerCrashedError\b"),
    ("killed", "raylet", r"(?i)\braylet (?:has )?(?:died|is terminated)\b|\bLocalRayletDiedError\b"),
    # Kubernetes.
    ("out_of_memory", "OOMKilled", r"\bOOMKilled\b"),
    ("out_of_memory", "low on resource: memory", r"node was low on resource: memory"),
    ("evicted", "low on resource", r"node was low on resource: "),
    ("evicted", "victed", r"\bReason:?\s{1,20}Evicted\b|\s\d{1,3}/\d{1,3}\s{1,20}Evicted\b|\bEvicted\s{1,20}\S{1,20}\s[^\n]{0,40}kubelet|\bpod [^\n]{1,120} (?:was|has been) [Ee]victed\b"),
    ("crash_loop", "ack-off restarting failed container", r"[Bb]ack-off restarting failed container"),
    ("crash_loop", "CrashLoopBackOff", r"\bCrashLoopBackOff\b"),
    ("node_failure", "node", r"\bNodeNotReady\b|\bNodeLost\b|node\.kubernetes\.io/(?:unreachable|not-ready):NoExecute|[Nn]ode (?:is|was) not ready\b"),
    ("killed", "137", r"(?i)\bexit(?:ed)?(?: with)?[ _]?(?:code|status)\"?\s{0,3}[:=]?\s{0,12}137\b", 137.0),
    ("stopped", "143", r"(?i)\bexit(?:ed)?(?: with)?[ _]?(?:code|status)\"?\s{0,3}[:=]?\s{0,12}143\b", 143.0),
)  # fmt: skip
