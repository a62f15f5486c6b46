"""The passes of one step: the draft's over all sequences that want one, then one ragged pass of the target."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Items
from dataclasses import dataclass

import torch
from torch import Tensor

from builder.decoding import acceptance, proposers
from builder.decoding.proposers import Context, Draft
from builder.decoding.random import uniforms
from builder.decoding.sampling import distribution, greedy_ids, token_logprobs
from builder.decoding.stopping import StopRule
from builder.errors import EngineError
from builder.runtime.batch import block_tables, ragged
from builder.runtime.drafter import Drafter
from builder.runtime.exit_drafter import ExitDrafter
from builder.runtime.exit_pass import ExitPass
from builder.runtime.exits import ExitPoint, Exits
from builder.runtime.runner import GreedyRunner, Rows, Runner
from builder.runtime.sequence import Sequence
from builder.runtime.settings import EngineSettings


@dataclass(frozen=True)
class Verdict:
    """What a sequence won in a step: `accepted` drafted tokens and the one that follows them."""

    sequence: Sequence
    token_ids: list[int]
    logprobs: list[dict[int, float]]
    drafted: int
    accepted: int
    left_at: int | None = None  # the exit layer its token came from


class Decoder:
    """Owns the two runners and the exit heads. EngineError when proposer, draft, target and exits do not fit together."""

    def __init__(
        self,
        target: Runner,
        draft: Runner | None,
        settings: EngineSettings,
        exits: Exits | None = None,
        draft_exit: ExitPoint | None = None,
    ) -> None:
        entry = proposers.entry(settings.proposer)
        if entry.needs_draft_model and draft is None:
            raise EngineError(f"proposer {settings.proposer} needs a draft model", where="speculation.proposer", mend="Add one")
        if draft is not None and draft.config.vocab_size != target.config.vocab_size:
            sizes = f"draft {draft.config.vocab_size}, target {target.config.vocab_size}"
            raise EngineError(f"draft and target have different vocabularies ({sizes})", where="draft.weights")
        if exits is not None and settings.proposer != "none":
            what = f"proposer {settings.proposer} and early exit do not go together"
            raise EngineError(what, where="early_exit.mode", mend="Set speculation.proposer to none")
        self._target = target
        self._exits = exits
        self._greedy_target = target if isinstance(target, GreedyRunner) else None
        self._proposer = entry.make()
        self.own_draft_cache = entry.needs_draft_model and not settings.shared_kv  # draft_computed is kept up
        if entry.needs_exit and draft_exit is None:
            raise EngineError(f"proposer {settings.proposer} needs an exit head", where="early_exit.mode", mend="Set it to draft")
        self._exit_drafter = ExitDrafter(target, draft_exit) if entry.needs_exit and draft_exit is not None else None
        self._drafter: Drafter | ExitDrafter | None = self._exit_drafter
        if entry.needs_draft_model and draft is not None:
            self._drafter = Drafter(draft, shared_kv=settings.shared_kv, max_rows=settings.max_num_tokens)

    def propose(
        self, limits: Items[tuple[Sequence, int]], stop_rule: Callable[[Sequence], StopRule | None] = lambda _: None
    ) -> list[Draft]:
        """One draft per sequence, of at most its limit and up to where its rule ends it; the blocks for it are taken already."""
        if not any(limit for _, limit in limits):
            return [Draft() for _ in limits]
        if self._drafter is not None:
            self._drafter.open([sequence for sequence, _ in limits])
        contexts = [_context(place, sequence, limit, stop_rule(sequence)) for place, (sequence, limit) in enumerate(limits)]
        return self._proposer.propose(contexts, self._drafter)

    def run(self, groups: Items[tuple[Sequence, Draft]], chunks: Items[tuple[Sequence, int]]) -> list[Verdict]:
        """One target pass over verify groups (plain rows are groups of one) and prefill chunks; then accept."""
        sequences = [sequence for sequence, _ in (*groups, *chunks)]
        parts = [_group_rows(place, *group) for place, group in enumerate(groups)]
        parts += [_chunk_rows(len(groups) + place, *chunk) for place, chunk in enumerate(chunks)]
        rows, ends = ragged(parts, block_tables([sequence.blocks for sequence in sequences]))
        for sequence in sequences:
            sequence.answer.tally.target_passes += 1
        hidden, left = self._through(rows, groups)
        verdicts = [Verdict(groups[place][0], [token], [], 0, 0, layer) for place, (token, layer) in left.items()]
        wanted = [row for row in range(ends[len(groups) - 1] if groups else 0) if row not in left]  # one row a group where tokens may leave
        deciding = [group for place, group in enumerate(groups) if place not in left]
        for (sequence, count), end in zip(chunks, ends[len(groups) :], strict=True):
            sequence.num_computed += count - 1
            if sequence.pending == 1:  # the prompt's last row: its logits give the first token
                wanted.append(end - 1)
                deciding.append((sequence, Draft()))
            else:
                sequence.num_computed += 1
        if not wanted:
            return verdicts
        hidden = hidden if len(wanted) == len(hidden) else hidden[wanted]
        best, logits = self._judge(hidden, deciding)
        return verdicts + _decide_all(best, logits, deciding)

    def share_ahead(self, drafts: Items[Draft]) -> float:
        """Share of the drafts' time that is the target's: an exit's first pass runs each sequence's last token, as plain decoding would."""
        return 1 / (1 + max(map(len, drafts), default=0)) if self._exit_drafter is not None else 0.0

    def _through(self, rows: Rows, groups: Items[tuple[Sequence, Draft]]) -> tuple[Tensor, dict[int, tuple[int, int]]]:
        """All rows through the layers; and of the sequences that decode, by place, the token and layer of those whose token left early."""
        if self._exit_drafter is not None:
            return self._exit_drafter.through(rows, [1 + len(draft) for _, draft in groups]), {}
        if self._exits is None or not groups:
            return self._target.layers(self._target.embed(rows), rows, 0, self._target.config.num_layers), {}
        passed = ExitPass(self._target, self._exits, [sequence for sequence, _ in groups])
        return passed.run(rows), passed.left

    def _judge(self, hidden: Tensor, deciding: Items[tuple[Sequence, Draft]]) -> tuple[list[int], Tensor | None]:
        """The most probable token of each row, and the logits where a request needs more: 16 MB of them for 80 rows, which a runner
        that finds the maximum as it goes never writes."""
        if self._greedy_target is not None and all(_plain_greedy(sequence) for sequence, _ in deciding):
            return self._greedy_target.greedy(hidden), None
        logits = self._target.head(hidden)
        return greedy_ids(logits) if any(sequence.request.sampling.greedy for sequence, _ in deciding) else [], logits


def _context(place: int, sequence: Sequence, limit: int, stop: StopRule | None) -> Context:
    sampling = sequence.request.sampling
    numbers = None if sampling.greedy or not limit else uniforms(sequence.seed, sequence.drawn, limit + 1)
    return Context(place, sequence.token_ids, limit, sampling, numbers, stop, sequence.may_copy)


def _group_rows(place: int, sequence: Sequence, draft: Draft) -> tuple[int, int, list[int]]:
    return place, len(sequence.token_ids) - 1, [sequence.token_ids[-1], *draft.token_ids]


def _chunk_rows(place: int, sequence: Sequence, count: int) -> tuple[int, int, list[int]]:
    start = sequence.num_computed
    return place, start, sequence.token_ids[start : start + count]


def _plain_greedy(sequence: Sequence) -> bool:
    """Whether the most probable token is all that a request asks of the logits."""
    sampling = sequence.request.sampling
    return sampling.greedy and sampling.repetition_penalty == 1.0 and sampling.logprobs is None


def _decide_all(best: list[int], logits: Tensor | None, groups: Items[tuple[Sequence, Draft]]) -> list[Verdict]:
    """best [rows] and logits [rows, V], K+1 rows a group; logits None when all groups are plainly greedy."""
    verdicts = []
    row = 0
    for sequence, draft in groups:
        end = row + len(draft) + 1
        verdicts.append(_decide(sequence, draft, None if logits is None else logits[row:end], best[row:end]))
        row = end
    return verdicts


def _decide(sequence: Sequence, draft: Draft, logits: Tensor | None, best: list[int]) -> Verdict:
    """Accept, then take both caches back to what was verified: the row before each kept token is right, later ones are not."""
    params, history, drafted = sequence.request.sampling, sequence.token_ids, draft.token_ids
    if logits is None or params.greedy:
        if logits is not None and params.repetition_penalty != 1.0:
            best = greedy_ids(logits, params.repetition_penalty, history, drafted)
        accepted, token = acceptance.verify_greedy(best, drafted)
    else:
        p = distribution(logits, params, history, drafted)
        q = torch.stack(draft.q) if draft.q else None
        accepted, token = acceptance.verify(p, q, drafted, uniforms(sequence.seed, sequence.drawn, len(drafted) + 1))
    won = [*drafted[:accepted], token]
    asked = params.logprobs
    logprobs = (
        []
        if asked is None or logits is None
        else [token_logprobs(row, token, asked) for row, token in zip(logits[: len(won)], won, strict=True)]
    )
    sequence.num_computed += len(won)
    sequence.draft_computed = min(sequence.draft_computed, sequence.num_computed)
    return Verdict(sequence, won, logprobs, len(drafted), accepted)
