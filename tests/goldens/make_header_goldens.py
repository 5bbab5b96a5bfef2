"""Records the tensors that transformers writes for one small model of each family that is counted only.

    pip install torch transformers==5.24.0
    python tests/goldens/make_header_goldens.py

Reads hf_counts.json, writes hf_headers.json, both beside this file: for each family a config and what its safetensors
file lists, {name: [dtype, shape]}. Knows nothing of kvwise.
"""

from __future__ import annotations

import copy
import json
import struct
import tempfile
from pathlib import Path
from typing import Any

import torch
import transformers

HERE = Path(__file__).parent


def header(folder: Path) -> dict[str, Any]:
    raw = (folder / "model.safetensors").read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    entries = json.loads(raw[8 : 8 + length])
    entries.pop("__metadata__", None)
    return {name: [entry["dtype"], entry["shape"]] for name, entry in entries.items()}


def record(config: dict[str, Any]) -> dict[str, Any]:
    fields = {"pad_token_id": None, **copy.deepcopy(config)}
    hf = transformers.AutoConfig.for_model(fields.pop("model_type"), **fields)
    model = transformers.AutoModelForCausalLM.from_config(hf).to(torch.bfloat16)
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        saved = json.loads((Path(folder) / "config.json").read_text())
        for name in ("transformers_version", "architectures"):
            saved.pop(name, None)
        return {"config": saved, "tensors": header(Path(folder))}


def main() -> None:
    transformers.logging.set_verbosity_error()
    records = json.loads((HERE / "hf_counts.json").read_text())["records"]
    by_family = {r["config"]["model_type"]: r["config"] for r in records}
    lines = ",\n".join(json.dumps(record(config)) for config in by_family.values())
    (HERE / "hf_headers.json").write_text(
        f'{{"transformers": "{transformers.__version__}", "records": [\n{lines}\n]}}\n'
    )


if __name__ == "__main__":
    main()
