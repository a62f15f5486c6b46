"""The report as tables of text: what the terminal and the HTML page both show."""

from __future__ import annotations

from dataclasses import dataclass

from builder.bench.report import Report
from builder.bench.spread import Spread


@dataclass(frozen=True)
class Table:
    """Cells are texts; the first `names` columns are names, the others numbers."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    names: int = 1
    note: str = ""


def tables(report: Report) -> list[Table]:
    """Those that have rows."""
    return [
        table
        for table in (_phases(report), _costs(report), _speculation(report), _early_exit(report), _triton(report), _peers(report))
        if table.rows
    ]


def _phases(report: Report) -> Table:
    rows = []
    for name, roof in report.rooflines.items():
        cells = (
            roof.weight_bytes / 1e6,
            roof.kv_bytes / 1e6,
            roof.operations / 1e6,
            roof.step * 1e3,
            roof.limit * 1e3,
            roof.bandwidth / 1e9,
        )
        rows.append((name, *(f"{cell:.1f}" for cell in cells), f"{roof.limit_share:.0%}"))
    context = max(roof.context for roof in report.rooflines.values())
    return Table(
        "Roofline of one step",
        ("model", "weights MB", "KV MB", "MFLOP", "step ms", "limit ms", "GB/s", "share of limit"),
        tuple(rows),
        note=f"At position {context}. The limit streams every matrix once with dummy rows and does nothing else; both alternate. "
        f"Plain decoding {spread(report.plain)} tokens/s; time to first token {report.time_to_first_token.median * 1e3:.0f} ms "
        f"for {report.prompt_tokens.median:.0f} prompt tokens.",
    )


def _costs(report: Report) -> Table:
    rows = []
    for k, costs in sorted(report.costs.items()):
        times = costs.times
        cells = (times.plain, times.draft, times.verify, costs.plain_overhead, costs.round_overhead, costs.full_round)
        ratios = (times.draft / times.plain, times.verify / times.plain)
        rows.append((str(k), *(f"{cell * 1e3:.2f}" for cell in cells), *(f"{ratio:.2f}" for ratio in ratios)))
    return Table(
        "What the parts of a round cost",
        ("K", "t_plain", "t_draft", "t_verify", "plain overhead", "round overhead", "round", "draft/plain", "verify/plain"),
        tuple(rows),
        note="Milliseconds, medians of calibrations between the prompts. Overhead is what a step costs beside its passes.",
    )


def _speculation(report: Report) -> Table:
    rows = []
    before = ""
    for result in report.results:
        rows.append(
            (
                "" if result.kind == before else result.kind,
                result.setting.method,
                str(result.setting.draft_tokens),
                spread(result.tokens_per_second),
                f"{spread(result.speedup, 2)}x",
                f"{result.predicted:.2f}x",
                f"{100 * result.prediction_error:+.1f} %",
                f"{result.formula:.2f}x",
                f"{result.acceptance_rate:.2f}",
                f"{result.acceptance_length:.2f}",
                " ".join(f"{share:.2f}" for share in result.by_position),
            )
        )
        before = result.kind
    return Table(
        "Speculation",
        ("class", "method", "K", "tokens/s", "speed-up", "predicted", "off by", "by formula", "accept. rate", "length", "by position"),
        tuple(rows),
        names=2,
        note="Medians over prompts (quartiles in brackets), each beside a plain answer taken seconds earlier. Predicted: the cost "
        "model with the rounds' own lengths; by formula: with (1-a^(K+1))/(1-a). A draft of weights that were quantised before, as a "
        "GGUF's, is accepted more often than one of native BF16 weights.",
    )


def _early_exit(report: Report) -> Table:
    rows = tuple(
        (
            result.kind,
            spread(result.tokens_per_second),
            f"{spread(result.speedup, 2)}x",
            f"{result.average_layers:.1f}",
            " ".join(f"{layer}: {tokens}" for layer, tokens in sorted(result.layers.items())),
            f"{result.differing:.2%}",
            f"{result.identical:.0%}",
        )
        for result in report.early_exit
    )
    return Table(
        "Early exit",
        ("class", "tokens/s", "speed-up", "layers a token", "tokens by layers", "differ", "identical answers"),
        rows,
        note="Each prompt beside a plain answer taken seconds earlier. Differ: share of an answer's tokens that the full model would not "
        "have chosen after the same text, mean over answers.",
    )


def _triton(report: Report) -> Table:
    result = report.triton
    if result is None:
        return Table("Through Triton", (), ())
    memory = f"{result.peak_memory / 1e6:.0f}" if result.peak_memory else "unknown"
    row = (
        f"{result.setting.method}, K={result.setting.draft_tokens}",
        spread(result.tokens_per_second),
        spread(result.in_process),
        spread(result.share, 2),
        f"{result.time_to_first_token.median * 1e3:.0f}",
        f"{report.load_seconds:.1f}",
        f"{result.ready_seconds:.1f}",
        memory,
    )
    columns = ("setting", "tokens/s", "in process", "share", "TTFT ms", "engine load s", "server ready s", "peak MB of decode")
    cpu = ", ".join(f"{name} {1e3 * seconds:.1f}" for name, seconds in result.cpu.items())
    note = f"Whole answers, each beside the same answer in process. CPU milliseconds a token: {cpu}."
    return Table("Through Triton (gRPC, streaming)", columns, (row,), note=note)


def _peers(report: Report) -> Table:
    rows = [
        (
            peer.peer,
            peer.mode,
            peer.precision,
            f"{peer.tokens_per_second:.1f}",
            peer.ours_mode,
            f"{peer.ours:.1f}",
            f"{peer.ours_over_peer:.2f}x",
        )
        for peer in report.peers
    ]
    columns = ("peer", "mode", "precision", "tokens/s", "our mode", "our tokens/s", "ours over peer")
    return Table("Peers on the same prompts", columns, tuple(rows), names=3, note="Ours is the mean of before and after each peer's run.")


def spread(value: Spread, digits: int = 1) -> str:
    """Median and quartiles: 97.1 (95.0-98.2)."""
    return f"{value.median:.{digits}f} ({value.p25:.{digits}f}-{value.p75:.{digits}f})"
