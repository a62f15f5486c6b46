"""The runner of a torch_aot engine on a CUDA GPU: the packed weights of the folder unpacked onto it, passes in torch's own kernels."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import SafetensorError
from torch import Tensor
from torch.nn import functional as F

from builder.compile.torch_aot.folder import EngineInfo, read_info
from builder.compile.torch_aot.unpacking import in_order, read_tensors
from builder.decoding.stopping import StopRule
from builder.errors import EngineError
from builder.runtime.runner import Rows
from builder.runtime.runners.cuda.cache import PagedCache, PassNumbers
from builder.runtime.runners.cuda.graphs import Graphs
from builder.runtime.runners.cuda.grid import layout
from builder.runtime.runners.cuda.matrix import Dense, load_matrix
from builder.runtime.runners.loaded import LoadedRunner, cache_bytes_per_block
from builder.runtime.runners.rotation import rotation
from builder.runtime.runners.torch_aot import EMBEDDING, VOCABULARY
from builder.runtime.runners.vocabulary import spread
from builder.weights.config import ModelConfig

_MATRICES = ("qkv", "output", "gate_up", "down")  # of a layer


class CudaRunner:
    """Implements LoadedRunner. `device` is a GPU; tests give it the CPU.

    The residual stream is float32, products are in the type of the weights, as in the compiled kernels. Logits and tokens come back to
    the host, where the decoding mathematics is done.
    """

    def __init__(self, info: EngineInfo, tensors: dict[str, Tensor], device: torch.device, max_seq_len: int) -> None:
        self.info = info
        self.config: ModelConfig = info.model
        self.kv_dtype = torch.float32 if info.weights == "float32" else torch.bfloat16
        self._device = device
        self._vectors = {name: in_order(name, tensor).to(device) for name, tensor in tensors.items() if tensor.ndim == 1}
        names = ["head", *(f"layers.{i}.{part}" for i in range(info.model.num_layers) for part in _MATRICES)]
        self._matrices = {name: load_matrix(tensors, name, device) for name in names}
        self._embedding = tensors[EMBEDDING].to(device) if EMBEDDING in tensors else None
        self._vocabulary = tensors[VOCABULARY].long().to(device) if VOCABULARY in tensors else None
        self._cosine, self._sine = (table.to(device) for table in rotation(info.model, max_seq_len))
        self._cache: PagedCache | None = None
        self._graphs = Graphs(device)

    @property
    def instruction_set(self) -> str:
        return torch.cuda.get_device_name(self._device) if self._device.type == "cuda" else "torch"

    @property
    def embedding(self) -> Tensor | None:
        return self._embedding

    def share_embedding(self, embedding: Tensor) -> None:
        self._embedding = embedding.to(self._device)

    def cache_bytes_per_block(self, block_size: int) -> int:
        return cache_bytes_per_block(self.config, self.kv_dtype, block_size)

    def allocate_cache(self, num_blocks: int, block_size: int) -> None:
        config = self.config
        row = config.num_kv_heads, config.head_dim
        self._cache = PagedCache(config.num_layers, num_blocks, block_size, row, self.kv_dtype, self._device)
        self._graphs = Graphs(self._device)  # those of another cache wrote there

    def share_cache(self, owner: LoadedRunner) -> None:
        """Use the first layers of another runner's cache: this model must be made from the same layers."""
        cache, config = owner._cache if isinstance(owner, CudaRunner) else None, self.config
        if cache is None or cache.layers < config.num_layers or cache.row != (config.num_kv_heads, config.head_dim):
            raise EngineError("the draft cannot share the target's KV cache", mend="Build the draft from the target's own weights")
        self._cache, self._graphs = cache, Graphs(self._device)

    def embed(self, rows: Rows) -> Tensor:
        return self._look_up(rows.token_ids.to(self._device))

    def _look_up(self, token_ids: Tensor) -> Tensor:
        if self._embedding is None:
            raise EngineError("the draft has no embedding of its own", mend="Call share_embedding first")
        return self._embedding[token_ids].float()

    @torch.inference_mode()
    def layers(self, hidden: Tensor, rows: Rows, start: int, stop: int) -> Tensor:
        if self._cache is None:
            raise EngineError("the runner has no cache", mend="Call allocate_cache first")
        cache, group = self._cache, self.config.num_heads // self.config.num_kv_heads
        plan = layout(rows, cache.block_size, cache.scratch)
        lay, back = (torch.from_numpy(index).to(self._device) for index in (plan.lay, plan.back))

        def run(hidden: Tensor, numbers: Tensor) -> Tensor:
            seen = cache.unpack(numbers, plan.grids, group)
            for layer in range(start, stop):
                hidden = self._layer(layer, hidden, seen, cache)
            return hidden

        laid, numbers = hidden[lay], cache.pack(plan)
        if plan.short:
            grid = plan.grids[0]
            return self._graphs.run((grid.positions.shape, grid.blocks.shape, start, stop), run, laid, numbers)[back]
        return run(laid, numbers.to(self._device))[back]

    def head(self, hidden: Tensor) -> Tensor:
        logits = self._logits(hidden).cpu()
        if self._vocabulary is None:
            return logits
        return spread(logits, self._vocabulary.cpu(), self.config.vocab_size)

    def greedy(self, hidden: Tensor) -> list[int]:
        tokens: list[int] = self._tokens(self._logits(hidden).argmax(-1)).tolist()
        return tokens

    @torch.inference_mode()
    def continue_greedily(self, rows: Rows, lengths: Tensor, stop: StopRule | None) -> tuple[Tensor, Tensor]:
        """Tokens stay on the device from step to step; with `stop` each step's confidences come to the host."""
        longest = int(lengths.max())
        drafted = torch.full((len(lengths), longest), -1, dtype=torch.int32)
        confidences = torch.zeros(len(lengths) if stop else 0, longest)
        going, tokens, steps = torch.arange(len(lengths)), rows.token_ids.to(self._device), []
        for step in range(longest):
            kept = lengths[going] > step
            if stop is not None and step:
                kept &= torch.tensor([not stop.ends(confidences[row, :step].tolist()) for row in going.tolist()])
            if not bool(kept.all()):
                going, tokens = going[kept], tokens[kept.to(self._device)]
            if not len(going):
                break
            at = Rows(rows.token_ids[going], rows.positions[going] + step, rows.sequence[going], rows.block_tables)
            logits = self._logits(self.layers(self._look_up(tokens), at, 0, self.config.num_layers))
            best = logits.argmax(-1)
            if stop is not None:
                confidences[going, step] = logits.softmax(-1).gather(-1, best[:, None])[:, 0].cpu()
            tokens = self._tokens(best)
            steps.append((going, tokens))
        for step, (rows_then, chosen) in enumerate(steps):
            drafted[rows_then, step] = chosen.cpu().int()
        return drafted, confidences

    def products(self, rows: int) -> None:
        """Every matrix product of a pass over dummy rows and nothing else: the limit that `bench` compares a step with."""
        config = self.config
        inputs = {"output": config.num_heads * config.head_dim, "down": config.intermediate_size}
        dummy = torch.zeros(rows, max(config.hidden_size, *inputs.values()), device=self._device)
        for name, matrix in self._matrices.items():
            matrix(dummy[:, : inputs.get(name.rpartition(".")[2], config.hidden_size)])
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def _tokens(self, outputs: Tensor) -> Tensor:
        return outputs if self._vocabulary is None else self._vocabulary[outputs]

    @torch.inference_mode()
    def _logits(self, hidden: Tensor) -> Tensor:
        """float32 [rows, tokens scored], on the device."""
        matrix, normed = self._matrices["head"], self._norm("norm", hidden)
        logits = matrix.wide(normed) if isinstance(matrix, Dense) else matrix(normed).float()
        return logits[:, : self.info.scored]

    def _layer(self, i: int, hidden: Tensor, seen: PassNumbers, cache: PagedCache) -> Tensor:
        name = f"layers.{i}"
        hidden = hidden + self._attention(i, name, self._norm(f"{name}.attention_norm", hidden), seen, cache)
        gate, up = self._product(f"{name}.gate_up", self._norm(f"{name}.mlp_norm", hidden), 2 * self.config.intermediate_size).chunk(2, -1)
        return hidden + self._product(f"{name}.down", F.silu(gate) * up, self.config.hidden_size)

    def _attention(self, i: int, name: str, x: Tensor, seen: PassNumbers, cache: PagedCache) -> Tensor:
        config = self.config
        heads, kv_heads, dim = config.num_heads, config.num_kv_heads, config.head_dim
        fused = self._product(f"{name}.qkv", x, (heads + 2 * kv_heads) * dim).view(len(x), -1, dim)
        query, key, value = fused.split((heads, kv_heads, kv_heads), dim=1)
        if config.qk_norm:
            query, key = self._norm(f"{name}.query_norm", query), self._norm(f"{name}.key_norm", key)
        cache.write(i, seen, self._rotate(key, seen.positions), value)
        mixed = cache.attend(i, seen, self._rotate(query, seen.positions))
        return self._product(f"{name}.output", mixed.flatten(1), config.hidden_size)

    def _product(self, name: str, x: Tensor, outputs: int) -> Tensor:
        """float32 [rows, outputs], without the engine's padding."""
        made = self._matrices[name](x)[:, :outputs].float()
        bias = self._vectors.get(f"{name}.bias")
        return made if bias is None else made + bias[:outputs]

    def _norm(self, name: str, x: Tensor) -> Tensor:
        return F.rms_norm(x, x.shape[-1:], self._vectors[name], self.config.rms_norm_eps)

    def _rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        """x [places, heads, head_dim]; rotary embedding (Su et al. 2021) in Hugging Face's order."""
        cosine, sine = self._cosine[positions][:, None], self._sine[positions][:, None]
        first, second = x.chunk(2, dim=-1)
        return torch.cat((first * cosine - second * sine, second * cosine + first * sine), dim=-1)


def load_cuda_runner(folder: Path, *, max_seq_len: int, device: torch.device | None = None) -> CudaRunner:
    """The engine in `folder` on `device`, the first GPU unless given.

    Raises EngineError when the folder is broken, there is no GPU, or it has no room.
    """
    info = read_info(folder)
    if device is None and not torch.cuda.is_available():
        what = f"torch {torch.__version__} sees no CUDA GPU"
        raise EngineError(what, where="engine.device", mend="Install a CUDA build of torch on a GPU host, or set engine.device to cpu")
    try:
        return CudaRunner(info, read_tensors(folder), device or torch.device("cuda", 0), max_seq_len)
    except torch.OutOfMemoryError as error:
        raise EngineError("the GPU has no room for the engine", where=str(folder), mend="Free its memory, or serve from another") from error
    except (OSError, KeyError, RuntimeError, SafetensorError) as error:
        reason = str(error).splitlines()[0]
        raise EngineError(f"the engine cannot be loaded ({reason})", where=str(folder), mend="Build the pipeline again") from error
