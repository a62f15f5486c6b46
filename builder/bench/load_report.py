"""What `builder bench --concurrency` found: JSON, tables, plot and page."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from builder.bench.concurrency import Load, Probes
from builder.bench.lab import PLAIN
from builder.bench.plots import panel, svg
from builder.bench.report import Machine
from builder.bench.report_folder import save
from builder.bench.tables import Table


@dataclass(frozen=True)
class PeerLoad:
    """Another engine's total tokens per second with so many streams of the same prompts, asked at once."""

    peer: str
    version: str
    streams: int
    tokens_per_second: float


@dataclass(frozen=True)
class LoadReport:
    pipeline: str
    version: int
    machine: Machine
    tokens: int  # of every answer
    blocks: int
    loads: tuple[Load, ...]
    probes: Probes
    peers: tuple[PeerLoad, ...] = ()
    created: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))

    def plain(self, streams: int) -> Load:
        return next(load for load in self.loads if load.streams == streams and load.setting == PLAIN)

    def ratios(self, load: Load) -> dict[str, float]:
        """Against plain decoding of as many streams, and against the smallest number of streams measured, plain."""
        fewest = min(self.loads, key=lambda found: (found.streams, found.setting != PLAIN))
        plain, at_once = self.plain(load.streams), load.burst_tokens_per_second
        return {
            "over_plain": load.tokens_per_second / plain.tokens_per_second,
            "burst_over_plain": at_once / plain.burst_tokens_per_second,
            "over_fewest": load.tokens_per_second / fewest.tokens_per_second,
        }

    def best(self, streams: int) -> float | None:
        """Our total tokens per second with so many streams, all asked at once as the peers are; None when not measured."""
        return max((load.burst_tokens_per_second for load in self.loads if load.streams == streams), default=None)

    def to_json(self) -> dict[str, Any]:
        head = {"pipeline": self.pipeline, "version": self.version, "created": self.created, "machine": asdict(self.machine)}
        peers = []
        for peer in self.peers:
            ours = self.best(peer.streams)
            peers.append(asdict(peer) | {"ours_over_peer": ours / peer.tokens_per_second if ours else None})
        return head | {
            "tokens": self.tokens,
            "blocks": self.blocks,
            "loads": [load.to_json() | self.ratios(load) for load in self.loads],
            "probes": self.probes.to_json(),
            "peers": peers,
        }

    def tables(self) -> list[Table]:
        return [table for table in (self._loads(), self._probes(), self._peers()) if table.rows]

    def _loads(self) -> Table:
        rows = []
        for load in self.loads:
            over = self.ratios(load)
            times = (load.gap_p50, load.gap_p99, load.ttft_p50, load.ttft_p95)
            cells = (f"{load.tokens_per_second:.0f}", *(f"{over[name]:.2f}x" for name in ("over_plain", "over_fewest")))
            at_once = (f"{load.burst_tokens_per_second:.0f}", f"{over['burst_over_plain']:.2f}x")
            gaps = (f"{1e3 * at:.1f}" for at in times)
            rows.append((str(load.streams), load.setting.method, *cells, *at_once, *gaps, f"{load.draft_tokens:.1f}"))
        speeds = ("tokens/s", "over plain", "over fewest", "burst tokens/s", "burst over plain")
        columns = ("streams", "proposer", *speeds, "gap p50", "gap p99", "TTFT p50", "TTFT p95", "K")
        note = (
            f"All streams together, {self.tokens} tokens an answer, prefill included; each answer that ends is replaced by the next, "
            f"but not in a burst, where all are asked at once. Medians of {self.blocks} blocks, plain and speculative in turn. "
            "Times in ms; a gap is the time between two chunks of one stream. K: mean tokens drafted a round."
        )
        return Table("Many streams", columns, tuple(rows), 2, note)

    def _probes(self) -> Table:
        found = self.probes
        rows = (
            (
                f"gap p99 during a neighbour's prefill of {found.prompt_tokens} tokens",
                f"{1e3 * found.disturbed_p99:.1f}",
                f"{found.interference:.2f}",
            ),
            (f"TTFT behind a shared prefix of {found.prefix_tokens} tokens", f"{1e3 * found.second_ttft:.1f}", f"{found.prefix_share:.2f}"),
        )
        note = "Ratios: to the stream's undisturbed median gap, and to the first prompt's time to first token."
        return Table("Neighbours", ("probe", "ms", "ratio"), rows, 1, note)

    def _peers(self) -> Table:
        rows = []
        for peer in self.peers:
            ours = self.best(peer.streams)
            ratio = f"{ours / peer.tokens_per_second:.2f}x" if ours else "-"
            rows.append((peer.peer, str(peer.streams), f"{peer.tokens_per_second:.0f}", ratio))
        return Table(
            "Other engines", ("peer", "streams", "tokens/s", "ours over it"), tuple(rows), 1, "Same prompts and lengths, same run."
        )

    def plot(self) -> str:
        """Total tokens per second of bursts against streams, an SVG: what the peers were asked."""
        figure, axes = panel()
        for label, loads in self._lines().items():
            axes.plot([streams for streams, _ in loads], [speed for _, speed in loads], marker="o", label=label)
        axes.set(xscale="log", xlabel="streams", ylabel="tokens/s, all streams", ylim=(0, None))
        axes.set_xticks(levels := sorted({load.streams for load in self.loads}), [str(level) for level in levels])
        axes.minorticks_off()
        axes.legend(frameon=False, fontsize=8)
        return svg(figure)

    def _lines(self) -> dict[str, list[tuple[int, float]]]:
        lines: dict[str, list[tuple[int, float]]] = {}
        for load in self.loads:
            lines.setdefault("plain" if load.setting == PLAIN else load.setting.method, []).append(
                (load.streams, load.burst_tokens_per_second)
            )
        for peer in self.peers:
            lines.setdefault(peer.peer, []).append((peer.streams, peer.tokens_per_second))
        return lines


def write_load_report(report: LoadReport, folder: Path) -> Path:
    """report.json and report.html in `folder` (created); the HTML's path. TandemError when they cannot be written."""
    environment = jinja2.Environment(loader=jinja2.PackageLoader("builder.bench", "."), autoescape=True, undefined=jinja2.StrictUndefined)
    page = environment.get_template("load.html.jinja").render(
        report=report,
        tables=report.tables(),
        plot=Markup(report.plot()),  # noqa: S704 - made by our own plot
    )
    return save(folder, page, report=report.to_json())
