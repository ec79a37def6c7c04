"""What the training program says of itself: skipped updates, non-finite values, data, checkpoints, its own end."""

_NAN = r"(?i)\b(?:loss|grad\w*|logits?|probs?|output)\b[^\n]{0,40}\b(?:is|are|was|=|contains?|got|became|found)\b[^\n]{0,20}\bnan\b(?![-_\w])|found nan in"
_NAN_GRADIENT = r"(?i)\bgrad(?:ient)?s?(?:[ _]norms?)?\b[^\n,;|]{0,20}\b(?:is|are|was|=|contains?|got|became)\b[^\n,;|]{0,20}\bnan\b(?![-_\w])"

MARKERS = (
    ("update_skipped", "grad_norm is not finite", r"grad_norm is not finite"),
    ("update_skipped", "radient norm is", r"[Gg]radient norm is (?:nan|inf|not finite)"),
    ("nonfinite_gradient_text", "grad norm", r"found (?:NaN|Inf|nan|inf) in local grad norm"),
    ("nonfinite_text", "DebugUnderflowOverflow", r"DebugUnderflowOverflow: inf/nan detected"),
    ("nonfinite_text", "Invalid loss", r"Invalid loss, terminating training"),
    ("nonfinite_gradient_text", "nan", _NAN_GRADIENT),
    ("nonfinite_gradient_text", "NaN", _NAN_GRADIENT),
    ("nonfinite_text", "nan", _NAN),
    ("nonfinite_text", "NaN", _NAN),
    ("nonfinite_text", "contains either", r"probability tensor contains either `?inf`?, `?nan`? or element < 0"),
    ("killed", "killed by signal", r"killed by signal"),
    ("data_error", "DataLoader worker", r"DataLoader worker[^\n]{0,200}(?:killed|exited unexpectedly)"),
    ("data_error", "label", r"[Aa]ll labels? (?:are|were) (?:masked|-100|ignored)|no (?:valid|unmasked) labels"),
    ("checkpoint_error", "size mismatch", r"size mismatch for \S+"),
    ("checkpoint_error", "state_dict", r"Error\(s\) in loading state_dict|[Uu]nexpected key\(s\) in state_dict|[Mm]issing key\(s\) in state_dict"),
    ("resumed", "heckpoint", r"(?i)(?:successfully )?loaded checkpoint|resum\w+ (?:training )?from|load(?:ing|ed) (?:model |training )?(?:state|checkpoint)s? from|continuing training from checkpoint"),
    ("resumed", "esum", r"(?i)resum(?:e|ed|ing) (?:training )?(?:from|at) (?:step|checkpoint|iteration|global)"),
    ("killed", "SIGKILL", r"(?:signal|Signal|exitcode|SIGNAL)[^\n]{0,200}SIGKILL|SIGKILL \(signal 9\)"),
    ("stopped", "SIGTERM", r"SIGTERM"),
    ("stopped", "reempt", r"(?i)\bpreempt(?:ed|ion)\b"),
    ("stopped", "exiting program", r"\[exiting program (?:after|at)"),
    ("stopped", "KeyboardInterrupt", r"KeyboardInterrupt"),
    ("completed", "raining complete", r"(?i)training completed?\b|\btraining complete[.!]"),
    ("completed", "Final validation metrics", r"Final validation metrics"),
    ("completed", "exits successfully", r"exits? successfully"),
)  # fmt: skip
