"""What metrics and ledger cost: one server whose metering is turned on and off, and how long a scrape takes."""

from __future__ import annotations

import http.client
import statistics
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from prometheus_client import CollectorRegistry, generate_latest

from builder.bench.prompts import shipped
from builder.bench.spread import Spread
from builder.errors import ServeError
from builder.files import copy_tree
from builder.repository.ensemble import ModelNames
from builder.repository.layout import SPEC_FILE
from builder.repository.live import serving_version, write_ensemble, write_members
from builder.repository.models.folder import read_spec
from builder.serve.client import generate
from builder.serve.exporter import PipelineCollector, reader
from builder.serve.ports import free_ports
from builder.serve.triton import Triton
from builder.spec.load import LoadedPipeline
from loadtest.median_interval import MedianInterval

HOST = "127.0.0.1"
METERED, BARE = "metered", "bare"
MOST_COST = 0.02  # of the tokens a second
MOST_SCRAPE_SECONDS = 0.05
SCRAPES = 20
SETTLES = 0.5  # seconds after which the server has heard of a switch; it looks twenty times a second
# Takes the place of model.py. While the file OFF exists the engine's observer and the ledger take whatever they are told and do nothing.
# Two servers, one with metering and one without, would differ by some percent were they the same: by where their memory happens to lie.
SWITCHED_MODEL = """\
import pathlib
import threading
import time

from builder.repository.models import decode

OFF = pathlib.Path({off!r})
off = False


def watch():
    global off
    while True:
        off = OFF.exists()
        time.sleep(0.05)


def switched(kind):
    class Switched:
        def __init__(self, *arguments, **named):
            self._real = kind(*arguments, **named)

        def __getattr__(self, name):
            return lambda *arguments, **named: None if off else getattr(self._real, name)(*arguments, **named)

    return Switched


threading.Thread(target=watch, daemon=True).start()
decode.TritonSink, decode.Billing = switched(decode.TritonSink), switched(decode.Billing)
TritonPythonModel = decode.TritonPythonModel
"""


@dataclass(frozen=True)
class Metering:
    """`cost` is the share of tokens a second that metering takes, a value for each metered block; `control` what one bare block seems to
    cost beside the one before, which is nothing. Scrapes in seconds, under the same load."""

    tokens_per_second: Mapping[str, Spread]
    cost: MedianInterval
    control: MedianInterval
    scrape: Spread  # of Triton's port
    slowest_scrape: float
    exporter_scrape: Spread  # of the exporter, its own scrape of Triton's port included

    @property
    def verdict(self) -> Literal["passed", "failed", "inconclusive"]:
        """Inconclusive while chance may put the cost on either side of its limit, or sees one where there is none."""
        if max(self.scrape.p75, self.exporter_scrape.p75) > MOST_SCRAPE_SECONDS or self.cost.low > MOST_COST:
            return "failed"
        sees_nothing = self.control.low <= 0 <= self.control.high
        return "passed" if self.cost.high <= MOST_COST and sees_nothing else "inconclusive"

    def to_json(self) -> dict[str, Any]:
        return {
            "verdict": self.verdict,
            "tok_s": {arm: spread.to_json() for arm, spread in self.tokens_per_second.items()},
            "cost": self.cost.to_json(),
            "control": self.control.to_json(),
            "scrape_seconds": {**self.scrape.to_json(), "most": self.slowest_scrape},
            "exporter_scrape_seconds": self.exporter_scrape.to_json(),
        }


def measure_metering(
    loaded: LoadedPipeline,
    repository: Path,
    folder: Path,
    *,
    blocks: int,
    streams: int,
    tokens: int,
    on_progress: Callable[[str], None] = lambda _: None,
) -> Metering:
    """Bare and metered blocks in turn, a metered one compared with the mean of its neighbours: a machine that slows down hurts both alike.
    ServeError when the server fails."""
    name, off = loaded.spec.metadata.name, folder / "off"
    on_progress("starting the server")
    copy = copy_version(repository, name, folder / "model_repository", off)
    with (folder / "server.log").open("w", encoding="utf-8") as log, Triton(copy, name, free_ports(HOST), host=HOST, log=log) as server:
        block(server, streams, tokens)  # also fills the prefix cache
        speeds: dict[str, list[float]] = {METERED: [], BARE: []}
        for number in range(2 * blocks + 1):
            on_progress(f"block {number + 1} of {2 * blocks + 1}")
            arm = METERED if number % 2 else BARE
            switch(off, arm == BARE)
            speeds[arm].append(block(server, streams, tokens))
        on_progress("scraping under load")
        switch(off, False)
        scrapes, exported = scrape_under_load(loaded, server, streams, tokens)
    neighbours = list(pairwise(speeds[BARE]))
    cost = MedianInterval.of(1 - metered / statistics.mean(pair) for metered, pair in zip(speeds[METERED], neighbours, strict=True))
    control = MedianInterval.of(1 - later / earlier for earlier, later in neighbours)
    spreads = {arm: Spread.of(values) for arm, values in speeds.items()}
    return Metering(spreads, cost, control, Spread.of(scrapes), max(scrapes), Spread.of(exported))


def copy_version(repository: Path, pipeline: str, target: Path, off: Path) -> Path:
    """A repository with the live version only, whose metering `off` turns off, and a ledger of its own. Copies: a link would change the
    times of the version's files, and a server that serves it would load it anew. Drafts have one length: two blocks then do the same."""
    version = serving_version(repository, pipeline)
    for model, source in version.folders.items():
        (target / model / source.name).mkdir(parents=True, exist_ok=True)  # the ensemble's has no file
        copy_tree(source, target / model / source.name)
    write_members(target, pipeline, version.number)
    write_ensemble(target, pipeline, version.number)
    served = target / ModelNames.of(pipeline).decode / str(version.number)
    (served / "model.py").write_text(SWITCHED_MODEL.format(off=str(off)), encoding="utf-8")
    spec = read_spec(served)
    control = spec.speculation.control.model_copy(update={"adaptive": False})
    fixed = spec.model_copy(update={"speculation": spec.speculation.model_copy(update={"control": control})})
    (served / SPEC_FILE).write_text(fixed.model_dump_json(indent=2), encoding="utf-8")
    return target


def switch(off: Path, bare: bool) -> None:
    if bare:
        off.touch()
    else:
        off.unlink(missing_ok=True)
    time.sleep(SETTLES)


def block(server: Triton, streams: int, tokens: int) -> float:
    """Tokens a second of so many streamed answers at once, from the first request to the last answer's end."""
    began = time.perf_counter()
    with ThreadPoolExecutor(streams) as pool:
        counts = list(pool.map(lambda number: _ask(server, number, tokens), range(streams)))
    return sum(counts) / (time.perf_counter() - began)


def _ask(server: Triton, number: int, tokens: int) -> int:
    prompt = shipped()[number % len(shipped())]
    usage: Mapping[str, Any] = {}
    url = f"{HOST}:{server.ports['grpc']}"
    for chunk in generate(url, server.pipeline, prompt=prompt.text, parameters={"max_tokens": tokens, "ignore_eos": True}):
        usage = chunk.usage or usage
    return int(usage["completion_tokens"])


def scrape_under_load(loaded: LoadedPipeline, server: Triton, streams: int, tokens: int) -> tuple[list[float], list[float]]:
    """Seconds of SCRAPES scrapes of Triton's port and of the exporter, while answers are decoded."""
    port, registry = server.ports["metrics"], CollectorRegistry()
    serving = loaded.spec.serving.model_copy(update={"metrics_port": port})
    spec = loaded.spec.model_copy(update={"serving": serving})
    registry.register(PipelineCollector(spec, server.repository, reader(HOST, port)))
    plain: list[float] = []
    exported: list[float] = []
    with ThreadPoolExecutor(1) as pool:
        load = pool.submit(block, server, streams, tokens)
        while len(plain) < SCRAPES:
            if load.done():
                load = pool.submit(block, server, streams, tokens)
            plain.append(_timed(lambda: _get(port)))
            exported.append(_timed(lambda: generate_latest(registry)))
            time.sleep(0.1)
    return plain, exported


def _timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _get(port: int) -> bytes:
    connection = http.client.HTTPConnection(HOST, port, timeout=10)
    try:
        connection.request("GET", "/metrics")
        return connection.getresponse().read()
    except (OSError, http.client.HTTPException) as error:
        raise ServeError(f"the metrics cannot be read ({error})", where=f"{HOST}:{port}") from error
    finally:
        connection.close()
