"""Drafts compared with those of mlx-vlm, which implements some of the same drafters independently.

Needs a Python with mlx-vlm, named by MLX_VLM_PYTHON; it reads the very checkpoint folder that is read here
and is handed the same embeddings, hiddens, keys and values. `make test-mlx-vlm` provides one.
"""

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten
from msgspec import Struct

from speculative.detect import DraftOptions, load_drafter
from speculative.drafter import Drafter
from speculative.gemma_drafter import visible_rows
from speculative.inkling_model import Model
from speculative.target import Target
from tests.speculative import inkling_files, qwen_files, tiny
from tests.speculative.family_heads import (
    CLUSTERS,
    assistant,
    assistant_fields,
    glm_head,
    published_glm_tensors,
    save,
)

PYTHON = os.environ.get("MLX_VLM_PYTHON", "")
pytestmark = pytest.mark.skipif(
    not PYTHON, reason="MLX_VLM_PYTHON names no Python with mlx-vlm; `make test-mlx-vlm` makes one"
)
SCRIPT = Path(__file__).with_name("mlx_vlm_drafts.py")
TOLERANCE = 1e-4

SHORT, LONG = tiny.prompt(9), tiny.prompt(2 * tiny.WINDOW + 3)
# Layers of the tiny Gemma target whose keys and values an assistant reads.
GEMMA_SOURCES = {"sliding_attention": 2, "full_attention": 3}
# Published configurations say these; where they do not, the two projects assume different fractions.
GEMMA_ROPE = {
    "full_attention": {"rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 0.25},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
}
QWEN_ROPE = {
    "type": "default",
    "rope_theta": 10000.0,
    "partial_rotary_factor": 0.25,
    "mrope_section": [2, 1, 1],
}


class Turn(Struct, frozen=True):
    """One round to play: drafts wanted, and how many of them count as accepted."""

    depth: int
    accepted: int


def mlx_vlm(*arguments: str) -> None:
    """Runs mlx-vlm's Python on its own packages alone; RuntimeError with its error output when it fails."""
    environment = os.environ | {"HF_HUB_OFFLINE": "1"}
    command = [PYTHON, "-I", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, env=environment, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr[-3000:]}")


def departs(reason: str) -> pytest.MarkDecorator:
    """mlx-vlm does otherwise on purpose or not; should it come to agree, the test says so by failing."""
    return pytest.mark.xfail(strict=True, raises=AssertionError, reason=f"mlx-vlm {reason}")


def noted_drafts(
    drafter: Drafter, state: Any, depth: int, caches: Sequence[Any]
) -> tuple[list[int], list[mx.array]]:
    """Proposals and the scores each of them is the argmax of."""
    scores: list[mx.array] = []
    argmax = mx.argmax

    def noting(array: mx.array, *args: Any, **kwargs: Any) -> mx.array:
        scores.append(array.reshape(1, -1))
        return argmax(array, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mx, "argmax", noting)
        ids: Any = drafter.draft(state, depth, caches).tolist()
    return ids, scores


class Exchange:
    """Rounds played by a drafter here, and written down for mlx-vlm to play them again."""

    def __init__(self, target: Target, kv: dict[str, int] | None = None, query_shift: int = 0) -> None:
        self._target = target
        self._kv = kv or {}
        self._query_shift = query_shift
        every = mx.arange(target.vocab_size)
        embed = target.inner.embed if hasattr(target.inner, "embed") else target.embed
        self.inputs: dict[str, mx.array] = {
            "embedding": embed(every),
            "output_head": target.output_head.weight,
        }
        self.case: dict[str, Any] = {"embed_scale": target.embed_scale, "kv": list(self._kv), "rounds": []}
        self.ids: list[int] = []
        self.scores: list[mx.array] = []

    def play(
        self, drafter: Drafter, prompt: list[int], turns: Sequence[Turn], *, primed: bool = True
    ) -> None:
        """Drafts after the prompt; what is emitted beyond accepted drafts is arbitrary."""
        caches, features = tiny.prefill(self._target, prompt)
        state, bonus = drafter.make_state(), 5
        if primed:
            drafter.prime(state, prompt, features)
        drafter.extend(state, [bonus], features[:, -1:])
        self.case |= {"prompt": prompt if primed else [], "bonus": bonus}
        self.inputs["prompt_hidden"] = features
        hidden = features[:, -1:]
        for number, turn in enumerate(turns):
            length = caches[0].offset if self._kv else 0
            self._note_inputs(number, hidden, caches)
            ids, scores = noted_drafts(drafter, state, turn.depth, caches)
            self.ids += ids
            self.scores += scores
            block = self._target.open_block(caches, turn.depth + 1)
            verified = self._target.verify(mx.array([[bonus, *ids]]), block).features
            block.keep(turn.accepted + 1)
            emitted = [*ids[: turn.accepted], (7 * bonus + 3) % (tiny.VOCAB - 6)]
            drafter.extend(state, emitted, verified[:, : turn.accepted + 1])
            self.inputs[f"{number}.verify_hidden"] = verified
            self.case["rounds"].append(
                {
                    "depth": turn.depth,
                    "accepted": turn.accepted,
                    "emitted": emitted,
                    "length": length,
                    "position": length - 1 + self._query_shift,
                }
            )
            hidden, bonus = verified[:, turn.accepted : turn.accepted + 1], emitted[-1]

    def _note_inputs(self, number: int, hidden: mx.array, caches: Sequence[Any]) -> None:
        self.inputs[f"{number}.hidden"] = hidden
        for kind, index in self._kv.items():
            keys, values = visible_rows(caches[index])
            # Copies: a view would change with the cache.
            self.inputs |= {
                f"{number}.keys.{kind}": mx.array(keys),
                f"{number}.values.{kind}": mx.array(values),
            }
        mx.eval(self.inputs)

    def replayed(self, folder: Path) -> tuple[list[int], mx.array]:
        """Ids and logits [n, V] of mlx-vlm's drafter in `folder`/drafter for the same rounds."""
        mx.save_safetensors(str(folder / "inputs.safetensors"), self.inputs)
        (folder / "rounds.json").write_text(json.dumps(self.case))
        mlx_vlm(str(SCRIPT), str(folder))
        drafts: Any = mx.load(str(folder / "drafts.safetensors"))
        return drafts["ids"].tolist(), drafts["logits"]


def checkpoint(folder: Path) -> Path:
    (folder / "drafter").mkdir()
    return folder / "drafter"


def assert_agreement(exchange: Exchange, folder: Path) -> None:
    """Same ids, picked from the same logits."""
    ids, logits = exchange.replayed(folder)
    assert ids == exchange.ids
    for ours, theirs in zip(exchange.scores, logits, strict=True):
        # Behind clusters only candidates have scores, in any order; mlx-vlm gives all others a lower one.
        best = mx.sort(theirs)[-ours.size :]
        assert float(mx.abs(mx.sort(ours.flatten()) - best).max().item()) < TOLERANCE


def bound(folder: Path, target: Target) -> Drafter:
    return load_drafter(folder / "drafter", target, DraftOptions(kind="mtp"))


@pytest.mark.parametrize(
    ("prompt", "window", "query_position", "clusters"),
    [
        pytest.param(SHORT, tiny.WINDOW, "last", {}, id="before the window"),
        pytest.param(SHORT, tiny.WINDOW, "bonus", CLUSTERS, id="before the window, ordered"),
        pytest.param(LONG, tiny.WINDOW + 1, "bonus", {}, id="past the window"),
        pytest.param(LONG, tiny.WINDOW + 1, "last", CLUSTERS, id="past the window, ordered"),
        pytest.param(
            LONG,
            tiny.WINDOW,
            "last",
            {},
            marks=departs("leaves out the oldest row of a window that has moved"),
            id="past the window, as configured",
        ),
    ],
)
def test_gemma_assistants(
    tmp_path: Path, prompt: list[int], window: int, query_position: str, clusters: dict[str, Any]
) -> None:
    """Same rows and same query position: same drafts.

    Once the window has moved, mlx-vlm measures distances from one behind the newest row, so it is told of a
    window one wider. The last position the target has read sees the whole window.
    """
    model, _ = assistant(**clusters)
    tensors: dict[str, mx.array] = dict(tree_flatten(model.parameters()))
    text = {"sliding_window": window, "hidden_size_per_layer_input": 0, "rope_parameters": GEMMA_ROPE}
    fields = assistant_fields(text, query_position=query_position, **clusters)
    save(checkpoint(tmp_path), fields, tensors)
    target = tiny.target("gemma4")
    exchange = Exchange(target, GEMMA_SOURCES, query_shift=int(query_position == "bonus"))
    exchange.play(bound(tmp_path, target), prompt, [Turn(3, 0), Turn(3, 2), Turn(3, 1)])
    assert_agreement(exchange, tmp_path)


def qwen_settings(kind: str) -> dict[str, Any]:
    """The target's text configuration, complete as a published one is."""
    return qwen_files.TEXTS[kind] | {
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 4096,
        "rope_parameters": QWEN_ROPE,
        "rope_theta": QWEN_ROPE["rope_theta"],
        "partial_rotary_factor": QWEN_ROPE["partial_rotary_factor"],
        "mtp_num_hidden_layers": 1,
    }


def write_qwen(folder: Path, kind: str, *, split: bool) -> None:
    """A head as a folder of its own, or among the shards of its target as published."""
    head, text = qwen_files.random_head(kind), qwen_settings(kind)
    if split:
        config = {"model_type": "qwen3_5_mtp", "text_config": text, "block_size": 4}
        tensors = {"model.safetensors": qwen_files.parameters(head)}
        qwen_files.write(folder, config, tensors, {"format": "mlx"})
        return
    names = {"dense": "qwen3_5", "moe": "qwen3_5_moe"}
    config = text if kind == "next" else {"model_type": names[kind], "text_config": text}
    mtp = qwen_files.with_single_experts(head) if kind == "next" else qwen_files.as_published(head)
    shards = {"model-00001-of-00001.safetensors": qwen_files.trunk(original=True) | mtp}
    qwen_files.write(folder, config, shards, {"format": "pt"})


KEPT = [Turn(3, 0), Turn(1, 1), Turn(1, 0), Turn(1, 1), Turn(3, 0), Turn(3, 0)]


@pytest.mark.parametrize(
    ("kind", "split", "turns"),
    [
        pytest.param("dense", True, KEPT, id="dense, split"),
        pytest.param("dense", False, KEPT, id="dense, published"),
        pytest.param("moe", True, KEPT, id="moe, split"),
        pytest.param("moe", False, KEPT, id="moe, published"),
        pytest.param("next", False, KEPT, id="next, published"),
        pytest.param(
            "dense",
            True,
            [Turn(3, 2), Turn(3, 0)],
            marks=departs("keeps the slots of accepted drafts that it drafted with"),
            id="dense, chained drafts accepted",
        ),
    ],
)
def test_qwen_heads(tmp_path: Path, kind: str, split: bool, turns: list[Turn]) -> None:
    """Primed with the prompt, chained three deep, and after rounds: same drafts from the same files.

    Slots of accepted drafts are made anew here, from the hiddens the target has computed since; mlx-vlm does
    so where it had not drafted on from them, hence acceptance at depth 1 only.
    """
    write_qwen(checkpoint(tmp_path), kind, split=split)
    target = tiny.target({"dense": "qwen3_5", "moe": "qwen3_5-moe", "next": "qwen3_next"}[kind])
    exchange = Exchange(target)
    exchange.play(bound(tmp_path, target), LONG, turns)
    assert_agreement(exchange, tmp_path)


@pytest.mark.parametrize(
    ("primed", "turns"),
    [
        pytest.param(True, [Turn(1, 0), Turn(1, 1), Turn(1, 0), Turn(1, 1)], id="first depth"),
        pytest.param(False, [Turn(3, 0)], id="all depths over one pair"),
        pytest.param(
            True,
            [Turn(3, 0)],
            marks=departs("gives its first block alone a history and drafts the second token with it too"),
            id="all depths",
        ),
    ],
)
def test_inkling_depths(tmp_path: Path, primed: bool, turns: list[Turn]) -> None:
    """The first depth agrees over any history, all depths over a history of one pair.

    mlx-vlm reads the embedding without the target's norm of it; the one it is handed is normed already.
    """
    model = tiny.inkling_model()
    assert isinstance(model, Model)
    inkling_files.write_checkpoint(tmp_path / "drafter", model, inkling_files.head())
    target = tiny.target("inkling")
    exchange = Exchange(target)
    exchange.play(bound(tmp_path, target), LONG, turns, primed=primed)
    assert_agreement(exchange, tmp_path)


def test_glm_heads(tmp_path: Path) -> None:
    """mlx-vlm splits this family's head but cannot run it: its split drafts as the published layer does."""
    head, _ = glm_head()
    bias = "e_score_correction_bias"
    tensors = {
        name: array if bias in name else array.astype(mx.bfloat16)
        for name, array in published_glm_tensors(head).items()
    }
    source = tmp_path / "published"
    source.mkdir()
    fields = tiny.GLM_FIELDS | {"num_nextn_predict_layers": 1}
    save(source, {"model_type": "glm4_moe_lite"} | fields, tensors)
    splitter = "mlx_vlm.speculative.drafters.glm4_moe_lite_mtp.split"
    mlx_vlm("-m", splitter, "--model", str(source), "--output", str(tmp_path / "drafter"))
    (source / "config.json").write_text(
        json.dumps({"model_type": "glm4_moe_lite_mtp", "text_config": fields})
    )
    target, played = tiny.target("glm4_moe_lite"), []
    for folder in (source, tmp_path / "drafter"):
        exchange = Exchange(target)
        exchange.play(load_drafter(folder, target, DraftOptions(kind="mtp")), LONG, [Turn(3, 2), Turn(3, 0)])
        played.append(exchange)
    assert played[0].ids == played[1].ids
    assert tiny.same_bytes(mx.concatenate(played[0].scores), mx.concatenate(played[1].scores))
