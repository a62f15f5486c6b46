"""Names that what publishes a version and what runs from it share. Imports nothing, so that Triton's stubs start fast."""

from __future__ import annotations

SPEC_FILE = "pipeline.json"  # the resolved spec, in each python model's version folder
TOKENIZER_FOLDER = "tokenizer"
GRPC_ADDRESS = "TANDEM_GRPC"  # in the environment of a server and its models: host:port of its own gRPC endpoint
