"""What the dashboards show: one entry a panel, with the text that says how to read it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from builder.telemetry import catalogue as server
from builder.telemetry import exporter_catalogue as exporter
from builder.telemetry.catalogue import Metric

MODEL = 'model=~"$model"'


def rate(metric: Metric, by: str, where: str = "", window: str = "5m") -> str:
    """Sum of rates a second over the chosen pipelines."""
    return f"sum by ({by}) (rate({metric.name}{{{MODEL}{where}}}[{window}]))"


def total(metric: Metric) -> str:
    return f"sum by (model) ({metric.name}{{{MODEL}}})"


def p95(metric: Metric) -> str:
    return f"histogram_quantile(0.95, sum by (model, le) (rate({metric.name}_bucket{{{MODEL}}}[5m])))"


@dataclass(frozen=True)
class Panel:
    """`queries` are PromQL by legend; `text` is one sentence for somebody who sees it for the first time."""

    title: str
    text: str
    queries: Mapping[str, str]
    unit: str = "short"  # Grafana's name


DASHBOARDS: Mapping[str, tuple[Panel, ...]] = {
    "Tandem: decoding": (
        Panel(
            "Acceptance rate",
            "Share of drafted tokens that the target kept. When it falls, drafts cost more than they give.",
            {"{{model}}": f"{rate(server.ACCEPTED_TOKENS, 'model')} / {rate(server.DRAFT_TOKENS, 'model')}"},
            "percentunit",
        ),
        Panel(
            "Tokens a speculative round",
            "Accepted tokens and the one that the target adds. 1 is plain decoding.",
            {"{{model}}": f"1 + {rate(server.ACCEPTED_TOKENS, 'model')} / {rate(server.DRAFTS, 'model')}"},
        ),
        Panel(
            "Accepted tokens by place in the draft",
            "Accepted a second at each place. A steep fall says that shorter drafts would do.",
            {"{{position}}": rate(server.ACCEPTED_PER_POSITION, "position")},
            "cps",
        ),
        Panel(
            "Target passes, made and avoided",
            "Passes a second of the target, and those that plain decoding would have made besides.",
            {"made": rate(server.TARGET_PASSES, "model"), "avoided": rate(server.TARGET_PASSES_AVOIDED, "model")},
            "cps",
        ),
        Panel(
            "Flags in force",
            "1 on, 0 off, for the whole pipeline. `all` at 0 is the kill switch.",
            {"{{name}}": f"min by (name) ({server.FLAG.name}{{{MODEL}}})"},
        ),
        Panel(
            "Requests in the engine",
            "Running in the batch, and waiting for a place in it.",
            {"{{state}}": f"sum by (state) ({server.REQUESTS.name}{{{MODEL}}})"},
        ),
        Panel(
            "KV cache",
            "Blocks held by running requests, kept for prompts that begin alike, and free.",
            {"{{state}}": f"sum by (state) ({server.KV_BLOCKS.name}{{{MODEL}}})"},
        ),
        Panel(
            "Processes",
            "CPU time a second of the server's processes on the exporter's machine: one core is 1.",
            {"{{process}}": f"sum by (process) (rate({exporter.PROCESS_CPU.name}{{{MODEL}}}[5m]))"},
        ),
    ),
    "Tandem: users": (
        Panel(
            "Time to first token, p95",
            "19 of 20 answers began faster. Beside it what `slo.ttft_p95` promises.",
            {"{{model}}": p95(server.FIRST_TOKEN), "objective": f'{exporter.SLO_OBJECTIVE.name}{{{MODEL},slo="ttft_p95"}}'},
            "s",
        ),
        Panel(
            "Time between tokens, p95",
            "Of an answer: the time from its first token to its last, a token after the first. Beside it `slo.inter_token_p95`.",
            {"{{model}}": p95(server.INTER_TOKEN_LATENCY), "objective": f'{exporter.SLO_OBJECTIVE.name}{{{MODEL},slo="inter_token_p95"}}'},
            "s",
        ),
        Panel(
            "Whole answers, p95",
            "From arrival to the last token. Beside it `slo.e2e_p95`.",
            {"{{model}}": p95(server.REQUEST_LATENCY), "objective": f'{exporter.SLO_OBJECTIVE.name}{{{MODEL},slo="e2e_p95"}}'},
            "s",
        ),
        Panel(
            "Share of slow observations",
            "Above their objective in the last hour. More than 5 % misses a p95.",
            {
                "{{slo}}": f"{rate(exporter.SLO_SLOW, 'slo', window='1h')} / {rate(exporter.SLO_OBSERVED, 'slo', window='1h')}",
            },
            "percentunit",
        ),
        Panel(
            "Finished requests",
            "A second, by how they ended: stop, length, cancelled, error.",
            {"{{finish_reason}}": rate(server.FINISHED_REQUESTS, "finish_reason")},
            "reqps",
        ),
    ),
    "Tandem: chargeback": (
        Panel(
            "Output tokens by tenant",
            "A second. Tenants outside chargeback.tenants are `other`.",
            {"{{tenant}}": rate(server.TOKENS, "tenant", ',token_type="output"')},
        ),
        Panel(
            "Tokens by kind",
            "A second: computed prompt tokens, cached ones, output, and drafted tokens that were refused.",
            {"{{token_type}}": rate(server.TOKENS, "token_type")},
        ),
        Panel(
            "Output tokens by optimisation",
            "How the requests that made them were decoded.",
            {"{{optimisation}}": rate(server.TOKENS, "optimisation", ',token_type="output"')},
        ),
        Panel(
            "Compute by tenant",
            "Seconds of passes a second: each request's share of the passes it was in.",
            {"{{tenant}}": rate(server.COMPUTE_SECONDS, "tenant")},
            "s",
        ),
        Panel(
            "Cost an hour",
            "All tokens at the prices of chargeback.per_million_tokens.",
            {
                "{{currency}}": f"sum by (currency) ({rate(server.TOKENS, 'model, token_type')} * on (model, token_type) "
                f"group_left (currency) max by (model, token_type, currency) ({exporter.PRICE.name}{{{MODEL}}})) * 3600 / 1e6"
            },
        ),
        Panel(
            "Ledger behind the counters",
            "Finished requests less ledger records. Anything but 0 for long is a mismatch.",
            {"{{model}}": f"{total(server.FINISHED_REQUESTS)} - {total(server.LEDGER_RECORDS)}"},
        ),
    ),
}
