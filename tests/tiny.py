"""Tiny random checkpoints on disk: real loading code, character-level tokenizer, no weights worth keeping."""

import json
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# Byte-level BPE writes a space and a newline as letters of their own.
_ALPHABET = ["\u010a", "\u0120", *(chr(code) for code in range(33, 127))]
CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "vocab_size": len(_ALPHABET) + len(SPECIAL),
    "max_position_embeddings": 512,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
}


def tokenizer() -> Tokenizer:
    """One token per printable ASCII character and newline, plus three special tokens."""
    vocab = {token: i for i, token in enumerate([*SPECIAL, *_ALPHABET])}
    built = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    built.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    built.decoder = decoders.ByteLevel()
    built.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    return built


def tokenizer_files() -> dict[str, bytes]:
    """The tokenizer as the files of a Hugging Face folder."""
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|im_start|>",
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "chat_template": TEMPLATE,
        "clean_up_tokenization_spaces": False,
        "model_max_length": CONFIG["max_position_embeddings"],
    }
    return {
        "tokenizer.json": tokenizer().to_str().encode(),
        "tokenizer_config.json": json.dumps(settings).encode(),
    }


def write_head(folder: Path) -> Path:
    """A random generic MTP head for the tiny checkpoint; returns the folder."""
    import mlx.core as mx

    from speculative.generic_head import GenericHead, GenericHeadConfig, HeadFiles, save_generic_head

    shared = ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "vocab_size")
    mx.random.seed(1)
    config = GenericHeadConfig(**{name: CONFIG[name] for name in shared})
    save_generic_head(folder, HeadFiles(GenericHead(config), config, None))
    return folder


def write_checkpoint(folder: Path, **changes: Any) -> Path:
    """A llama checkpoint of random float32 weights (seed 0) that mlx-lm loads; returns the folder."""
    import mlx.core as mx
    from mlx.utils import tree_flatten
    from mlx_lm.models import llama

    config = CONFIG | changes
    folder.mkdir(parents=True, exist_ok=True)
    mx.random.seed(0)
    model = llama.Model(llama.ModelArgs.from_dict(config))
    # At mlx-lm's initial scale a tied random model repeats its input; louder layers make it wander.
    weights = {
        n: v * 4 if v.ndim == 2 and "embed" not in n else v for n, v in tree_flatten(model.parameters())
    }
    mx.save_safetensors(str(folder / "model.safetensors"), weights, metadata={"format": "mlx"})
    (folder / "config.json").write_text(json.dumps(config))
    for name, content in tokenizer_files().items():
        (folder / name).write_bytes(content)
    return folder
