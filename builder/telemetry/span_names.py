"""Every span and every attribute of a trace. Names that OpenTelemetry's conventions for generative AI have are theirs."""

from __future__ import annotations

REQUEST = "request"  # the root: from tokenize to the last chunk
TOKENIZE = "tokenize"
QUEUE = "queue"  # from arrival at the decode model to the first pass
PREFILL = "prefill"
DRAFT = "draft"
VERIFY = "verify"  # a target pass that decodes; without a draft it is a plain one
DETOKENIZE = "detokenize"

MODEL = "gen_ai.request.model"
INPUT_TOKENS = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
FINISH_REASONS = "gen_ai.response.finish_reasons"
ERROR = "error.type"

VERSION = "tandem.version"
TENANT = "tandem.tenant"
OPTIMISATION = "tandem.optimisation"
CACHED_TOKENS = "tandem.cached_tokens"  # of the prompt
SAMPLE = "tandem.sample"  # place among the answers of the request
TOKENS = "tandem.tokens"  # of the prompt that was run; won by rounds
DRAFT_LENGTH = "tandem.k"  # what the control allowed; the most of several rounds
DRAFTED = "tandem.drafted"
ACCEPTED = "tandem.accepted"
EXIT_LAYER = "tandem.exit_layer"  # where a token left early; the lowest of several passes
EXIT_LAYERS = "tandem.exit_layers"  # of the whole answer, "layers run: tokens"; only where the pipeline has early exit
COUNT = "tandem.count"  # passes, rounds or chunks in the span
BUSY = "tandem.busy_seconds"  # without the time between them
