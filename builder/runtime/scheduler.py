"""Who runs, who waits, who must give way, in the order of a policy."""

from __future__ import annotations

import sys

from builder.runtime.block_manager import BlockManager
from builder.runtime.eviction import forgotten
from builder.runtime.exits import Exits, ExitState, exit_state
from builder.runtime.policy import make_policy
from builder.runtime.sequence import Sequence, Status
from builder.runtime.settings import EngineSettings
from builder.runtime.speculation import SpeculationControl
from builder.runtime.switches import Switches

# Tokens of the first of several answers after which the others no longer wait for the draft to have run the prompt: it may never draft.
DRAFT_CATCHES_UP = 8


class Scheduler:
    """`running` is kept in the policy's order: admission takes the first of the queue only, and the last running one returns to it.

    With `own_draft_cache` a block is cached once the draft has run its positions too: a hit then serves both models, and nobody
    writes the draft's part of a block that others hold.
    """

    def __init__(self, settings: EngineSettings, *, own_draft_cache: bool = False, exits: Exits | None = None) -> None:
        self.settings = settings
        self._own_draft_cache = own_draft_cache
        self._exits = exits
        self.blocks = BlockManager(settings.num_blocks, settings.block_size)
        self.context = min(settings.max_seq_len, settings.num_blocks * settings.block_size)  # tokens one sequence can reach alone
        self.policy = make_policy(settings)
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self.preemptions = 0
        self.switches = Switches()
        self.control = SpeculationControl(settings, own_draft_cache=own_draft_cache)

    def missing_places(self, answers: int = 1) -> int:
        """How many of `answers` find no place in the queue. Free batch places are room: a burst that could run at once is not refused."""
        places = self.settings.max_waiting + self.settings.max_batch_size - len(self.running)
        return max(0, len(self.waiting) + answers - places)

    @property
    def longest(self) -> int:
        """Tokens a text may reach, prompt and answer together."""
        return self.context if self.settings.eviction == "recompute" else sys.maxsize

    def add(self, sequence: Sequence) -> None:
        if self._is_full(sequence):
            sequence.evict(self._forgotten(sequence))
        self.policy.arrived(sequence, (*self.waiting, *self.running))
        self.waiting.append(sequence)

    def admit(self) -> None:
        """Start waiting sequences while blocks for all their tokens and one round of drafts are free."""
        self._admit()
        self.running.sort(key=self.policy.rank)

    def _admit(self) -> None:
        while len(self.running) < self.settings.max_batch_size:
            sequence = min(filter(self._may_start, self.waiting), key=self.policy.rank, default=None)
            if sequence is None:
                return
            tokens = len(sequence.token_ids)
            prefix = self.blocks.match(sequence.token_ids, self._isolation(sequence)) if self._caches(sequence) else []
            if not self.blocks.can_allocate(min(tokens + 1 + self.settings.max_draft_tokens, self.context), prefix):
                return  # nobody overtakes the first: a long prompt cannot starve
            sequence.blocks = self.blocks.allocate(tokens, prefix)
            positions = len(prefix) * self.settings.block_size
            sequence.skip(positions, positions if self._own_draft_cache else 0)
            sequence.status = Status.RUNNING
            self.waiting.remove(sequence)
            self.running.append(sequence)
            if not sequence.answer.tally.target_passes:
                self.policy.admitted(sequence)

    def _may_start(self, sequence: Sequence) -> bool:
        """Answers to one prompt wait until the first has run it, and then find its blocks in the prefix cache."""
        leader, prompt = sequence.leader, len(sequence.request.prompt_ids)
        if leader is None or leader.status is not Status.RUNNING or not self._caches(sequence) or leader.answer.tally.evicted_tokens:
            return True
        behind = self._own_draft_cache and leader.draft_computed < prompt and len(leader.token_ids) < prompt + DRAFT_CATCHES_UP
        return leader.num_computed >= prompt and not behind

    def make_room(self) -> None:
        """Give each decoding sequence the block its next token needs, in the policy's order, at the cost of the last."""
        for sequence in list(self.running):
            while sequence.status is Status.RUNNING and not self.blocks.can_grow(sequence.blocks, len(sequence.token_ids)):
                self._preempt(self.running[-1])
            if sequence.status is Status.RUNNING:
                self.blocks.grow(sequence.blocks, len(sequence.token_ids))

    def _preempt(self, sequence: Sequence) -> None:
        self._return(sequence)
        sequence.forget()
        self.preemptions += 1

    def _return(self, sequence: Sequence) -> None:
        """Back to the queue, without blocks."""
        self.running.remove(sequence)
        self.blocks.free(sequence.blocks)
        self.waiting.insert(0, sequence)

    def evict_if_full(self, sequence: Sequence) -> None:
        """A running sequence whose next token has no place in the context forgets its middle and is run again."""
        if self._is_full(sequence):
            self._return(sequence)
            sequence.evict(self._forgotten(sequence))

    def _is_full(self, sequence: Sequence) -> bool:
        return len(sequence.token_ids) >= self.context and self.settings.eviction == "attention_sink"

    def _forgotten(self, sequence: Sequence) -> range:
        return forgotten(len(sequence.token_ids), self.context, self.settings.block_size)

    def draft_limits(self, now: float = 0.0) -> list[tuple[Sequence, int]]:
        """The decoding sequences with the draft tokens each may have; their blocks are taken here, and nobody is preempted.

        Every running sequence keeps one row of the pass; of the rows left, drafts leave half to prompts being prefilled.
        """
        decoding = [sequence for sequence in self.running if sequence.pending == 1]
        spare = self.settings.max_num_tokens - len(self.running)
        if len(decoding) < len(self.running):
            spare //= 2
        limits = []
        for sequence, length in zip(decoding, self.control.lengths(now, decoding, self._speculates), strict=True):
            sequence.answer.tally.exit_state = self._exit_state(sequence)
            limit = max(0, min(self._wanted(sequence, length), spare, self.blocks.room(sequence.blocks) - len(sequence.token_ids)))
            self.blocks.grow(sequence.blocks, len(sequence.token_ids) + limit)
            spare -= limit
            limits.append((sequence, limit))
        return limits

    def _wanted(self, sequence: Sequence, length: int) -> int:
        """A round of K drafts emits up to K+1 tokens: more than the answer or the context can take is work thrown away."""
        room = self.context - len(sequence.token_ids)
        return min(length, sequence.answer.remaining - 1, room - 1)

    def _speculates(self, sequence: Sequence) -> bool:
        """A request may decline speculation, but never gets what its operator turned off."""
        possible = self.settings.proposer != "none" and self.settings.max_draft_tokens > 0
        return possible and sequence.request.speculation and self.switches.speculation_for(sequence.request.tenant)

    def _exit_state(self, sequence: Sequence) -> ExitState:
        request = sequence.request
        return exit_state(request.sampling, self._exits, asked=request.early_exit, allowed=self.switches.early_exit_for(request.tenant))

    def prefill_chunks(self, rows_taken: int) -> list[tuple[Sequence, int]]:
        """Sequences being prefilled and the tokens of each that run in this pass: the first takes what the others can spare."""
        prefilling = [sequence for sequence in self.running if sequence.pending > 1]
        most = self.settings.max_num_tokens
        if rows_taken and prefilling:
            most = self.control.rows_beside(rows_taken, most)
        spare = max(0, most - rows_taken - len(prefilling))
        chunks = []
        for sequence in prefilling:
            extra = min(sequence.pending - 1, spare)
            spare -= extra
            chunks.append((sequence, 1 + extra))
        return chunks

    def publish(self) -> None:
        """After a pass: what the running sequences have computed is there for the prompts to come."""
        for sequence in self.running:
            self._publish(sequence)

    def _publish(self, sequence: Sequence) -> None:
        """A round whose end was cut off has computed more positions than it kept tokens."""
        if self._caches(sequence):
            computed = min(sequence.num_computed, len(sequence.token_ids))
            if self._own_draft_cache:
                computed = min(computed, sequence.draft_computed)
            self.blocks.publish(sequence.blocks, sequence.token_ids, computed, self._isolation(sequence))

    def _caches(self, sequence: Sequence) -> bool:
        """Whether it takes prefixes from the cache and leaves its own there. What lies there already stays for others."""
        return self.settings.prefix_caching and self.switches.prefix_cache_for(sequence.request.tenant)

    def _isolation(self, sequence: Sequence) -> str:
        return sequence.request.tenant if self.settings.prefix_isolation == "tenant" else ""

    def trim(self, sequence: Sequence) -> None:
        self.blocks.trim(sequence.blocks, len(sequence.token_ids))

    def remove(self, sequence: Sequence) -> None:
        """Forget a sequence, wherever it is, and free its blocks; what it has computed stays cached."""
        if sequence.status is Status.RUNNING:
            self._publish(sequence)
            self.running.remove(sequence)
        elif sequence.status is Status.WAITING:
            self.waiting.remove(sequence)
        self.blocks.free(sequence.blocks)
        sequence.status = Status.FINISHED

    def abandon_running(self) -> list[Sequence]:
        """After a failed step nothing about the running sequences can be trusted: drop them all and start with fresh accounts."""
        lost, self.running = self.running, []
        self.blocks = BlockManager(self.settings.num_blocks, self.settings.block_size)
        return self._lose(lost)

    def abandon_waiting(self) -> list[Sequence]:
        lost = list(self.waiting)
        self.waiting.clear()
        return self._lose(lost)

    def _lose(self, lost: list[Sequence]) -> list[Sequence]:
        for sequence in lost:
            sequence.blocks = []
            sequence.status = Status.FINISHED
        return lost
