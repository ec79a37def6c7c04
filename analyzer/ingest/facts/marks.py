"""What the head of a text log must hold to say anything of its configuration; cheap to look for, so that most logs pay nothing."""

from __future__ import annotations

#: What stands before or in a dump of arguments or a printed configuration.
DUMPS = ("arguments ---", "DeepSpeedEngine configuration", "'actor_rollout_ref': {", "Final config:", "json = {", "Model config ", "Config(", "Arguments(", "ServerArgs(", "Namespace(", "LLM engine (v")  # fmt: skip
#: What starts a training; the paths of a traceback hold `python3.11/`, never `python `.
LAUNCHERS = ("torchrun ", "python ", "python3 ", " -m ", "accelerate launch ", "deepspeed ", "swift ", "llamafactory-cli ", "trl ")  # fmt: skip
MARKS = (*DUMPS, *LAUNCHERS)
