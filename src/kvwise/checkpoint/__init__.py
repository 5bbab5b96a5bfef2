"""What is on disk: model files found, checked against hostile contents, and read by canonical weight name.

Reads GGUF and safetensors. Knows no program and no backend; imports numpy only where bytes are read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvwise.registry import names_loaded_late

if TYPE_CHECKING:
    from kvwise.checkpoint.checkpoint import Checkpoint, match_tensors
    from kvwise.checkpoint.opening import open_checkpoint, read_config
    from kvwise.checkpoint.resolve import LocalModel, list_local_models, resolve_model
    from kvwise.checkpoint.stored import StoredTensor

__all__ = [
    "Checkpoint",
    "LocalModel",
    "StoredTensor",
    "list_local_models",
    "match_tensors",
    "open_checkpoint",
    "read_config",
    "resolve_model",
]

__getattr__ = names_loaded_late(
    globals(),
    {
        "Checkpoint": "kvwise.checkpoint.checkpoint:Checkpoint",
        "LocalModel": "kvwise.checkpoint.resolve:LocalModel",
        "StoredTensor": "kvwise.checkpoint.stored:StoredTensor",
        "list_local_models": "kvwise.checkpoint.resolve:list_local_models",
        "match_tensors": "kvwise.checkpoint.checkpoint:match_tensors",
        "open_checkpoint": "kvwise.checkpoint.opening:open_checkpoint",
        "read_config": "kvwise.checkpoint.opening:read_config",
        "resolve_model": "kvwise.checkpoint.resolve:resolve_model",
    },
)
