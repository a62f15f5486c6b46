"""Export a Hugging Face folder with modelopt. Run by the Python of its own environment (`make trtllm`), never imported by builder.

modelopt needs another transformers than the tests do, hence a process of its own. It prints one JSON line for each step, and the
last one says what was written. Exit code 3: modelopt is not installed.
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
import warnings
from pathlib import Path
from typing import Any

NOT_INSTALLED = 3
DECODERS = {"llama": "llama", "mistral": "llama", "qwen2": "qwen", "qwen3": "qwen"}  # modelopt's names of the architectures


def main() -> None:
    options = parse()
    try:
        import modelopt.torch.export
        import modelopt.torch.quantization
        import torch
        import transformers
    except ImportError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(NOT_INSTALLED)
    warnings.filterwarnings("ignore")
    torch.set_num_threads(options.threads)
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(options.model, torch_dtype=torch.bfloat16)
    model.eval()
    tell("loaded")
    if options.format == "int4_awq":
        quantize(model, options, modelopt.torch.quantization, torch, transformers)
    with torch.inference_mode():
        if options.layout == "hf":
            modelopt.torch.export.export_hf_checkpoint(model, export_dir=options.out)
        else:
            modelopt.torch.export.export_tensorrt_llm_checkpoint(
                model,
                DECODERS[model.config.model_type],
                torch.bfloat16,
                options.out,
                inference_tensor_parallel=options.tensor_parallel,
                inference_pipeline_parallel=options.pipeline_parallel,
            )
            state_logits_dtype(options.out / "config.json", options.logits_dtype)
    tell("written")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--format", choices=("bfloat16", "int4_awq"), required=True)
    parser.add_argument("--layout", choices=("trtllm", "hf"), required=True)
    parser.add_argument("--group-size", type=int, default=128)
    parser.add_argument("--calibration", type=Path)
    parser.add_argument("--logits-dtype", default="float32")
    parser.add_argument("--tensor-parallel", type=int, default=1)
    parser.add_argument("--pipeline-parallel", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    return parser.parse_args()


def quantize(model: Any, options: argparse.Namespace, quantization: Any, torch: Any, transformers: Any) -> None:
    """INT4-AWQ: the search for scales runs the calibration texts through the model. Other INT4 configurations write no scales."""
    config = copy.deepcopy(quantization.INT4_AWQ_CFG)
    for quantizer in weight_quantizers(config):
        quantizer["block_sizes"][-1] = options.group_size
    tokenizer = transformers.AutoTokenizer.from_pretrained(options.model)
    texts = options.calibration.read_text(encoding="utf-8").splitlines()

    def run(calibrated: Any) -> None:
        for number, text in enumerate(texts, start=1):
            with torch.inference_mode():
                calibrated(torch.tensor([tokenizer(text).input_ids]))
            tell(f"calibrated with {number} of {len(texts)} texts")

    quantization.quantize(model, config, run)


def weight_quantizers(config: Any) -> list[Any]:
    """The entries that say in which blocks weights are quantised: a mapping in some releases of modelopt, a list in others."""
    entries = config["quant_cfg"]
    entries = entries.values() if isinstance(entries, dict) else [entry.get("cfg") for entry in entries]
    return [entry for entry in entries if isinstance(entry, dict) and "block_sizes" in entry]


def state_logits_dtype(path: Path, logits_dtype: str) -> None:
    """modelopt writes float16 and NVIDIA's converter float32: both engines and the server must say the same."""
    config = json.loads(path.read_text(encoding="utf-8"))
    config["logits_dtype"] = logits_dtype
    path.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def tell(step: str) -> None:
    sys.stdout.write(json.dumps({"step": step}) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
