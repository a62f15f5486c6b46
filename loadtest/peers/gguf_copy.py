"""A GGUF file copied in another precision, with all its metadata."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import gguf
import numpy as np
from gguf.constants import GGMLQuantizationType, GGUFValueType, LlamaFileType
from gguf.quants import dequantize, quantize

_T = GGMLQuantizationType
_FILE_TYPES: Mapping[GGMLQuantizationType, LlamaFileType] = {
    _T.BF16: LlamaFileType.MOSTLY_BF16,
    _T.Q4_0: LlamaFileType.MOSTLY_Q4_0,
}
_WRITTEN_ANEW = ("general.architecture", "general.file_type", "general.quantization_version")
_COUNTS = "GGUF."  # the reader's names for version and counts, which the writer makes itself


def copy_gguf(source: Path, target: Path, kind: GGMLQuantizationType) -> None:
    """Write `source` to `target` with its matrices in `kind` (BF16 or Q4_0) and its vectors in F32, as llama.cpp's converter has them.

    Rows keep their order, so q and k stay in the interleaved order that llama.cpp rotates.
    """
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(target, arch=str(reader.fields["general.architecture"].contents()))
    writer.add_file_type(_FILE_TYPES[kind])
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    for field in reader.fields.values():
        if field.name not in _WRITTEN_ANEW and not field.name.startswith(_COUNTS):
            item = field.types[-1] if field.types[0] == GGUFValueType.ARRAY else None
            writer.add_key_value(field.name, field.contents(), field.types[0], sub_type=item)
    for tensor in reader.tensors:
        values = np.asarray(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
        stored = _T.F32 if values.ndim == 1 else kind
        writer.add_tensor(tensor.name, values if stored == _T.F32 else quantize(values, stored), raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
