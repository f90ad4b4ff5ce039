"""vLLM's Triton kernels for guesses, in torch, for machines without a GPU, with vLLM's arguments and
their names: tensors in the place of pointers. Guesses of all sequences are concatenated, and
`cu_num_draft_tokens_ptr` has the end of each sequence's."""

import torch

NO_TOKEN = -1


def runs(ends: torch.Tensor) -> list[tuple[int, int, int]]:
    """Of each sequence its number, its first guess, and where its guesses end."""
    stops = ends.tolist()
    return [(n, first, last) for n, (first, last) in enumerate(zip([0, *stops], stops))]


def prepare_inputs(ends, counts, starts, to_sample, rejected, sequences):
    """The last token of each sequence that is kept, and the number of rejected guesses after it."""
    guesses = torch.diff(ends[:sequences], prepend=ends.new_zeros(1))
    wrong = torch.where(guesses > 0, guesses + 1 - counts[:sequences], 0)
    to_sample[:sequences] = starts[1 : sequences + 1] - 1 - wrong
    rejected[:sequences] = wrong


def prepare_next(sampled, discarded, otherwise, token, counts, vocab, *_, **__):
    """The last token of each sequence that is kept, and how many are."""
    rows = len(token)
    kept = (sampled != NO_TOKEN) & (sampled < vocab) & ~discarded[:rows, None]
    number = kept.sum(1)
    place = torch.where(kept, torch.arange(sampled.shape[1]), NO_TOKEN).amax(1)
    last = sampled.gather(1, place.clamp(min=0)[:, None])[:, 0]
    token.copy_(torch.where(number > 0, last, otherwise[:rows]))
    counts.copy_(number)


def step(
    positions, table, stride, lengths, to_positions, slots, block, longest, pages, pad, sequences
):
    """The next token of each sequence: its position, place in the cache, and length."""
    following = positions[:sequences] + 1
    ends = following >= longest
    at = torch.where(ends, 0, following)
    page = table[:sequences].gather(1, (at // block).clamp(max=pages - 1)[:, None].long())[:, 0]
    slots[sequences:] = pad
    slots[:sequences] = torch.where(ends, pad, page * block + at % block)
    to_positions[:sequences] = at
    longer = torch.where(ends, 1, lengths[:sequences] + 1)
    lengths[:sequences] = longer.clamp(max=longest)


def verify_greedy(
    output, ends, guesses, likeliest, bonus, greedy, most, uniform=None, rates=None, synthetic=False
):
    """Keeps guesses up to the first that is not the likeliest token, and one more token."""
    for row, first, last in runs(ends):
        if greedy is None or greedy[row]:
            right = (guesses[first:last] == likeliest[first:last]).tolist()
            keep(output[row], likeliest[first:last], right, bonus[row])


def verify_random(
    output,
    ends,
    guesses,
    draft,
    target,
    bonus,
    recovered,
    uniform,
    greedy,
    most,
    vocab,
    rates=None,
    certain=False,
    synthetic=False,
):
    """Keeps guesses by rejection sampling, up to the first that is not kept, and one more token."""
    for row, first, last in runs(ends):
        if greedy[row]:
            continue
        ids = guesses[first:last].long()
        known, at = ids >= 0, torch.arange(first, last)
        of_draft = 1 if draft is None else draft[at, ids]
        ratio = target[at, ids] / of_draft
        right = (known & (of_draft > 0 if draft is not None else known)) & (
            ratio >= uniform[first:last]
        )
        chosen = torch.where(right, ids, recovered[first:last].long())
        keep(output[row], chosen, right.tolist(), bonus[row])


def keep(row, tokens, right: list[bool], bonus) -> None:
    wrong = right.index(False) if False in right else len(right)
    kept = min(wrong + 1, len(right))
    row[:kept] = tokens[:kept]
    if wrong == len(right):
        row[wrong] = bonus


def recover(output, ends, guesses, draft, target, inverse, vocab, *_, **__):
    """The token in the place of each guess that is not kept, drawn from what the draft's distribution leaves of the model's."""
    for row, first, last in runs(ends):
        left = target[first:last, :vocab].clone()
        if draft is None:
            left.scatter_(1, guesses[first:last].clamp(min=0).long()[:, None], 0)
        else:
            left = (left - draft[first:last, :vocab]).clamp(min=0)
        output[first:last] = (left * inverse[row, :vocab]).argmax(1).to(output.dtype)


def expand(output, values, ends, replaced, by, *_, **__):
    """A value of each sequence, for each of its guesses."""
    values = torch.where(values == replaced, by, values)
    for row, first, last in runs(ends):
        output[first:last] = values[row]


KERNELS = {
    "spec_decode.utils.eagle_prepare_inputs_padded_kernel": prepare_inputs,
    "spec_decode.utils.eagle_prepare_next_token_padded_kernel": prepare_next,
    "spec_decode.utils.eagle_step_slot_mapping_metadata_kernel": step,
    "sample.rejection_sampler.rejection_greedy_sample_kernel": verify_greedy,
    "sample.rejection_sampler.rejection_random_sample_kernel": verify_random,
    "sample.rejection_sampler.sample_recovered_tokens_kernel": recover,
    "sample.rejection_sampler.expand_kernel": expand,
}
