"""Drafts by a small model of the target's family, one step a token, each step batched over all sequences."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from builder.decoding.filters import penalise
from builder.decoding.proposers.interface import Context, Draft, DraftModel
from builder.decoding.proposers.registry import register
from builder.decoding.random import Purpose
from builder.decoding.sampling import distribution, greedy_ids, sample
from builder.errors import EngineError


@register("draft_model", needs_draft_model=True)
class DraftModelProposer:
    def propose(self, contexts: Sequence[Context], model: DraftModel | None) -> list[Draft]:
        if model is None:
            raise EngineError("this proposer needs a draft model", where="speculation.proposer", mend="Add a draft, or choose ngram")
        drafts = {context.index: Draft() for context in contexts}
        wanting = [context for context in contexts if context.limit > 0]
        if wanting and all(is_plain_greedy(context) for context in wanting) and (whole := model.greedy(wanting)) is not None:
            drafts |= {context.index: draft for context, draft in zip(wanting, whole, strict=True)}
        elif wanting:
            active, logits = model.begin(wanting)
            while active:
                pick(logits, active, [drafts[context.index] for context in active])
                active = [context for context in active if goes_on(context, drafts[context.index])]
                if active:
                    last = [drafts[context.index] for context in active]
                    active, logits = model.step(active, [draft.token_ids[-1] for draft in last], len(last[0]))
        return [drafts[context.index] for context in contexts]


def is_plain_greedy(context: Context) -> bool:
    """Whether the most probable token is all that counts."""
    return context.sampling.greedy and context.sampling.repetition_penalty == 1.0


def goes_on(context: Context, draft: Draft) -> bool:
    return len(draft) < context.limit and not (context.stop and context.stop.ends(draft.confidences))


def pick(logits: Tensor, contexts: Sequence[Context], drafts: Sequence[Draft]) -> None:
    """Append to each draft the token drawn from its row of logits [contexts, V], and q where it was a draw."""
    best = greedy_ids(logits) if any(context.sampling.greedy for context in contexts) else []
    for row, (context, draft) in enumerate(zip(contexts, drafts, strict=True)):
        params = context.sampling
        seen = [*context.token_ids, *draft.token_ids] if params.repetition_penalty != 1.0 else ()
        if context.uniforms is None:
            penalised = penalise(logits[row : row + 1], params.repetition_penalty, seen)
            if context.stop:
                draft.confidences.append(float(penalised.softmax(-1).max()))
            draft.token_ids += [best[row]] if is_plain_greedy(context) else greedy_ids(penalised)
        else:
            q = distribution(logits[row : row + 1], params, seen)[0]
            if context.stop:
                draft.confidences.append(float(q.max()))
            draft.q.append(q)
            draft.token_ids.append(sample(q, float(context.uniforms[len(draft), Purpose.DRAFT])))
