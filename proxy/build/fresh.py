"""A proxy of a model that is known by its config.json alone: built by transformers (extra `proxy`), with its own initialisation.

The one build that holds the proxy in memory.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from faultproxy.analyzer.errors import InputError
from faultproxy.analyzer.report.clean import visible


def instantiate(config: dict[str, Any], folder: Path, seed: int) -> None:
    """Write a model of this configuration into a folder, in the type that the configuration names.

    Raises:
        InputError: The extra is missing, or transformers has no such model.
    """
    try:
        import torch
        import transformers
    except ImportError as error:
        raise InputError(
            "a model without weights is built by transformers: pip install 'faultproxy[proxy]', or give a SOURCE with weights"
        ) from error
    try:
        known = dict(config)
        settings = transformers.AutoConfig.for_model(known.pop("model_type"), **known)
        kind: Any = (
            transformers.AutoModelForImageTextToText if "vision_config" in config else transformers.AutoModelForCausalLM
        )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = kind.from_config(settings, trust_remote_code=False)
        transformers.logging.disable_progress_bar()
        model.save_pretrained(folder, max_shard_size="5GB")
    except OSError:
        raise
    except Exception as error:  # each model has errors of its own
        what = visible(str(error), 300)
        raise InputError(
            f"transformers {transformers.__version__} cannot build this model ({what}); give a SOURCE with weights"
        ) from error
