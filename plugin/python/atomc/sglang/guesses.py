"""SGLang's kernels for guesses, in torch, for machines without a GPU, with SGLang's arguments.
Guesses of a request are a chain: the first follows a known token, each other the one before."""

import torch

from . import compat

# In a chain a row has a next one and no sibling.
NONE = -1

# Options that say how likely a guess has to be to be kept.
THRESHOLDS = ("speculative_accept_threshold_single", "speculative_accept_threshold_acc")


def later(step: int, chances, tokens, rows, scores, _):
    """Each request's guess after the first one. SGLang has torch's code for trees, compiled."""
    scores = scores * chances
    return tokens.flatten(), rows, scores, (scores[:, None], tokens, torch.full_like(tokens, step))


def draft_slots(requests, table, lengths, slots, _, columns: int, **__) -> None:
    """Where each guess of a request has its place in the cache."""
    slots.copy_(behind(requests, table, lengths, columns))


def verified_slots(*, req_pool_indices, req_to_token, start_offset, draft_token_num: int, **_):
    """Where each token has its place that a step verifies."""
    return behind(req_pool_indices, req_to_token, start_offset, draft_token_num)


def behind(requests, table, lengths, count: int) -> torch.Tensor:
    at = lengths.long()[:, None] + torch.arange(count)
    return table[requests.long()[:, None], at].long().flatten()


def last_slot(table, requests, lengths):
    """Where the last token of each request has its place, or none."""
    last = table[requests, lengths - 1]
    return torch.where(lengths > 0, last, torch.full_like(last, NONE))


def take_slots(requests, table, starts, ends, slots, _) -> None:
    """Notes for each request the places that it has got."""
    parts = slots.split((ends - starts).tolist())
    for request, start, part in zip(requests.tolist(), starts.tolist(), parts):
        table[request, start : start + len(part)] = part.to(table.dtype)


def chain(_, __, lengths, mask, positions, index, following, beside, *sizes) -> None:
    """Of each token to verify: its position, the next token, and the tokens that it attends to."""
    *_, count, of_step_alone = sizes
    order = torch.arange(count)
    positions.copy_((lengths.long()[:, None] + order).flatten())
    index.copy_(torch.arange(index.numel()).view_as(index))
    following.copy_(torch.where(order + 1 < count, order + 1, NONE).expand_as(following))
    beside.fill_(NONE)
    widths = [count if of_step_alone else length + count for length in lengths.tolist()]
    parts = mask[: count * sum(widths)].split([count * width for width in widths])
    for part, width in zip(parts, widths):
        part.view(count, width)[:, -count:] = torch.ones(count, count).tril()


def verify(predicts, accept_index, accept_token_num, candidates, retrieve_index, *_, **named):
    """Keeps guesses up to the first that is not the likeliest token, and one more token."""
    likeliest = named["target_predict"]
    right = (candidates[:, 1:] == likeliest[:, :-1]).long().cumprod(1).sum(1)
    keep(predicts, accept_index, accept_token_num, likeliest, retrieve_index, right)
    return predicts, accept_index, accept_token_num


def keep(predicts, accept_index, accept_token_num, tokens, index, right) -> None:
    kept = torch.arange(tokens.shape[1]) <= right[:, None]
    predicts.copy_(torch.where(kept, tokens, 0).flatten())
    accept_index.copy_(torch.where(kept, index, NONE))
    accept_token_num.copy_(right)


def bonus(accepted, lengths, tokens, width: int, requests: int) -> None:
    """The last token of each request that is kept."""
    tokens.copy_(accepted.view(requests, width).gather(1, lengths.long()[:, None] - 1)[:, 0])


def all_likeliest(**_) -> bool:
    """Steps are verified as if all requests wanted the likeliest tokens. `sampled` does the rest."""
    return True


def sampled(verified, steps, batch, outputs, *arguments, **named):
    """Verifies guesses of requests that sample. Before it SGLang's own has put into logits what requests want."""
    tokens, lengths, index = found = verified(steps, batch, outputs, *arguments, **named)
    wanted, count = batch.sampling_info, steps.draft_token_num
    if wanted.is_all_greedy or batch.forward_mode.is_idle():
        return found
    each = lambda values: values.repeat_interleave(count, 0)
    chances = (outputs.next_token_logits.float() / each(wanted.temperatures)).softmax(1)
    if wanted.need_top_k_sampling:
        chances = likeliest(chances, each(wanted.top_ks))
    if wanted.need_top_p_sampling:
        chances = nucleus(chances, each(wanted.top_ps))
    guesses = steps.draft_token.view(-1, count)
    coins = compat._verify_coins(
        sampling_info=wanted,
        seq_lens=batch.seq_lens,
        draft_token_num=count,
        candidates=guesses,
        device=batch.device,
    )
    asked = compat.options(THRESHOLDS)
    right = torch.empty_like(lengths)
    taken, right_of_each = sample(
        guesses, chances.unflatten(0, (-1, count)), coins, [asked[name] for name in THRESHOLDS]
    )
    keep(tokens, index, right, taken, steps.retrieve_index, right_of_each)
    compat.agree(tokens, index, right)
    return tokens, right + 1, index


def sample(candidates, chances, coins, thresholds) -> tuple[torch.Tensor, torch.Tensor]:
    """Keeps guesses by rejection sampling, up to the first that is not kept, and draws one more token. A guess is certain, so what is left
    of the distribution where it was wrong is all but the guess. Tokens of each request, and how many of its guesses are kept."""
    (of_each, final), (single, accumulated) = coins, thresholds
    guesses = candidates[:, 1:].long()
    chance = chances[:, :-1].gather(2, guesses[:, :, None])[:, :, 0]
    kept = (of_each[:, : guesses.shape[1]] * accumulated <= chance) & (chance > 0)
    kept |= chance >= single
    right = kept.long().cumprod(1).sum(1)
    rows = torch.arange(len(right))
    left = chances[rows, right].clone()
    wrong = right < guesses.shape[1]
    left[rows[wrong], guesses[rows[wrong], right[wrong]]] = 0
    sums = left.cumsum(1)
    drawn = final[:, None] * sums[:, -1:]
    last = torch.searchsorted(sums, drawn, right=True)[:, 0].clamp(max=left.shape[1] - 1)
    tokens = torch.cat([guesses, last[:, None]], 1)
    tokens[rows, right] = last
    return tokens, right


def likeliest(probabilities: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """The `counts` likeliest tokens of each row, their probabilities scaled to a sum of one."""
    order = probabilities.argsort(1, descending=True).argsort(1)
    return shares(probabilities * (order < counts.view(-1, 1)))


def nucleus(probabilities: torch.Tensor, most: torch.Tensor) -> torch.Tensor:
    """The likeliest tokens of each row up to a sum, scaled to a sum of one."""
    ordered, places = probabilities.sort(1, descending=True)
    ordered[ordered.cumsum(1) - ordered > most.view(-1, 1)] = 0
    return shares(torch.zeros_like(ordered).scatter_(1, places, ordered))


def shares(probabilities: torch.Tensor) -> torch.Tensor:
    return probabilities / probabilities.sum(1, keepdim=True)


# What stands where SGLang launches kernels.
KERNELS = {
    compat.LATER: later,
    compat.LAST_SLOT: last_slot,
    compat.SLOTS: take_slots,
    compat.GUESS_SLOTS: draft_slots,
    compat.CHAIN: chain,
    compat.VERIFY: verify,
    compat.BONUS: bonus,
    compat.LIKELIEST: all_likeliest,
}


def register() -> None:
    if compat.OLDER:  # which has others, and no platform for processors
        return
    for place, function in KERNELS.items():
        compat.HookRegistry.register(place, function, compat.HookType.REPLACE)
    compat.HookRegistry.register(compat.SAMPLE, sampled, compat.HookType.AROUND)
