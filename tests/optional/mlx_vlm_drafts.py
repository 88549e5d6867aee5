"""Proposals of mlx-vlm's own drafters, run by a Python that has mlx-vlm: `python mlx_vlm_drafts.py FOLDER`.

FOLDER holds a drafter's checkpoint in `drafter/`, and in `inputs.safetensors` and `rounds.json` what a target
would hand over. Writes `drafts.safetensors`: all proposed ids and the logits each was picked from. Knows
nothing of this project, which is not importable there.
"""

import json
import sys
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx import nn
from mlx_vlm.speculative.drafters import load_drafter


class SharedParts(nn.Module):
    """What a drafter takes of its target: the embedding with its scale, and the output head."""

    def __init__(self, embedding: mx.array, output_head: mx.array, scale: float) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(*embedding.shape)
        self.embed_tokens.weight = embedding
        self.lm_head = nn.Linear(output_head.shape[1], output_head.shape[0], bias=False)
        self.lm_head.weight = output_head
        self.embed_scale = scale


class NotedPicks:
    """A greedy sampler that remembers what it was shown and what it took."""

    def __init__(self) -> None:
        self.ids: list[mx.array] = []
        self.logits: list[mx.array] = []

    def __call__(self, logits: mx.array) -> mx.array:
        ids = mx.argmax(logits, axis=-1)
        self.ids.append(ids.flatten())
        self.logits.append(logits.reshape(1, -1))
        return ids


def propose(drafter: Any, inputs: dict[str, mx.array], case: dict[str, Any]) -> NotedPicks:
    """Primes the drafter with the prompt where there is one, then drafts and accepts round by round."""
    sampler = NotedPicks()
    drafter.reset(SharedParts(inputs["embedding"], inputs["output_head"], case["embed_scale"]))
    bonus, keeps_history = case["bonus"], hasattr(drafter, "prefill_from_target_hidden")
    if keeps_history and case["prompt"]:
        prompt = mx.array([case["prompt"]])
        drafter.prefill_from_target_hidden(prompt, inputs["prompt_hidden"], bonus, sampler)
    for number, turn in enumerate(case["rounds"]):
        rows = {
            kind: (inputs[f"{number}.keys.{kind}"], inputs[f"{number}.values.{kind}"]) for kind in case["kv"]
        }
        drafter.set_shared_kv(rows, turn["length"], position=turn["position"], kv_valid_len=turn["length"])
        ids = drafter.draft_block(bonus, inputs[f"{number}.hidden"], None, turn["depth"] + 1, sampler)
        if keeps_history and number + 1 < len(case["rounds"]):
            verified = inputs[f"{number}.verify_hidden"]
            drafter.accept_verified_tokens(verified, ids, turn["accepted"], turn["emitted"], sampler)
        bonus = turn["emitted"][-1]
    return sampler


def main(folder: Path) -> None:
    drafter, _ = load_drafter(str(folder / "drafter"), kind="mtp")
    inputs: Any = mx.load(str(folder / "inputs.safetensors"))
    picks = propose(drafter, inputs, json.loads((folder / "rounds.json").read_text()))
    drafts = {"ids": mx.concatenate(picks.ids).astype(mx.int32), "logits": mx.concatenate(picks.logits)}
    mx.save_safetensors(str(folder / "drafts.safetensors"), drafts)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
