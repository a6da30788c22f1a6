"""Names and shapes of a Stable Diffusion 1.x checkpoint at any width: the real key layout of U-Net and text encoder."""

from __future__ import annotations

from collections.abc import Iterator

Entry = tuple[str, tuple[int, ...]]

CONTEXT = 768
"""Width of the text: what makes a model one of the 1.x family, so it is never shrunk."""
VOCABULARY = 49408
POSITIONS = 77
_LEVELS = (1, 2, 4, 4)
_ATTENTION_LEVELS = 3
_RES_BLOCKS = 2


def unet(channels: int) -> Iterator[Entry]:
    """The U-Net with `channels` channels on its widest level (the real one has 320)."""
    embedding = 4 * channels
    yield from _layer("time_embed.0", embedding, channels)
    yield from _layer("time_embed.2", embedding, embedding)
    yield from _layer("input_blocks.0.0", channels, 4, 3, 3)
    skips, width, number = [channels], channels, 1
    for level, factor in enumerate(_LEVELS):
        for _ in range(_RES_BLOCKS):
            yield from _residual(f"input_blocks.{number}.0", width, factor * channels, embedding)
            width = factor * channels
            if level < _ATTENTION_LEVELS:
                yield from _transformer(f"input_blocks.{number}.1", width)
            skips.append(width)
            number += 1
        if level < len(_LEVELS) - 1:
            yield from _layer(f"input_blocks.{number}.0.op", width, width, 3, 3)
            skips.append(width)
            number += 1
    yield from _residual("middle_block.0", width, width, embedding)
    yield from _transformer("middle_block.1", width)
    yield from _residual("middle_block.2", width, width, embedding)
    yield from _upwards(channels, width, skips)
    yield from _norm("out.0", channels)
    yield from _layer("out.2", 4, channels, 3, 3)


def _upwards(channels: int, width: int, skips: list[int]) -> Iterator[Entry]:
    number = 0
    for level in reversed(range(len(_LEVELS))):
        for place in range(_RES_BLOCKS + 1):
            base = f"output_blocks.{number}"
            yield from _residual(f"{base}.0", width + skips.pop(), _LEVELS[level] * channels, 4 * channels)
            width = _LEVELS[level] * channels
            attention = level < _ATTENTION_LEVELS
            if attention:
                yield from _transformer(f"{base}.1", width)
            if level and place == _RES_BLOCKS:
                yield from _layer(f"{base}.{2 if attention else 1}.conv", width, width, 3, 3)
            number += 1


def _residual(base: str, inside: int, out: int, embedding: int) -> Iterator[Entry]:
    yield from _norm(f"{base}.in_layers.0", inside)
    yield from _layer(f"{base}.in_layers.2", out, inside, 3, 3)
    yield from _layer(f"{base}.emb_layers.1", out, embedding)
    yield from _norm(f"{base}.out_layers.0", out)
    yield from _layer(f"{base}.out_layers.3", out, out, 3, 3)
    if inside != out:
        yield from _layer(f"{base}.skip_connection", out, inside, 1, 1)


def _transformer(base: str, width: int) -> Iterator[Entry]:
    yield from _norm(f"{base}.norm", width)
    yield from _layer(f"{base}.proj_in", width, width, 1, 1)
    block = f"{base}.transformer_blocks.0"
    for attention, source in (("attn1", width), ("attn2", CONTEXT)):
        for name, columns in (("to_q", width), ("to_k", source), ("to_v", source)):
            yield f"{block}.{attention}.{name}.weight", (width, columns)
        yield from _layer(f"{block}.{attention}.to_out.0", width, width)
    yield from _layer(f"{block}.ff.net.0.proj", 8 * width, width)
    yield from _layer(f"{block}.ff.net.2", width, 4 * width)
    for name in ("norm1", "norm2", "norm3"):
        yield from _norm(f"{block}.{name}", width)
    yield from _layer(f"{base}.proj_out", width, width, 1, 1)


def text_encoder(layers: int, inner: int = 4 * CONTEXT) -> Iterator[Entry]:
    """CLIP-L's text model with `layers` blocks (the real one has 12)."""
    yield "embeddings.token_embedding.weight", (VOCABULARY, CONTEXT)
    yield "embeddings.position_embedding.weight", (POSITIONS, CONTEXT)
    for number in range(layers):
        base = f"encoder.layers.{number}"
        for name in ("k_proj", "v_proj", "q_proj", "out_proj"):
            yield from _layer(f"{base}.self_attn.{name}", CONTEXT, CONTEXT)
        yield from _norm(f"{base}.layer_norm1", CONTEXT)
        yield from _layer(f"{base}.mlp.fc1", inner, CONTEXT)
        yield from _layer(f"{base}.mlp.fc2", CONTEXT, inner)
        yield from _norm(f"{base}.layer_norm2", CONTEXT)
    yield from _norm("final_layer_norm", CONTEXT)


def autoencoder(channels: int) -> Iterator[Entry]:
    """The VAE with `channels` channels on its widest level (the real one has 128)."""
    for side, blocks, step in (("encoder", 2, "down"), ("decoder", 3, "up")):
        up = side == "decoder"
        yield from _layer(f"{side}.conv_in", channels * (4 if up else 1), 4 if up else 3, 3, 3)
        width = channels * (4 if up else 1)
        for level in reversed(range(4)) if up else range(4):
            for place in range(blocks):
                base, out = f"{side}.{step}.{level}.block.{place}", _LEVELS[level] * channels
                yield from _vae_block(base, width, out)
                width = out
            if level != (0 if up else 3):
                yield from _layer(f"{side}.{step}.{level}.{step}sample.conv", width, width, 3, 3)
        middle = 4 * channels
        yield from _vae_block(f"{side}.mid.block_1", middle, middle)
        yield from _norm(f"{side}.mid.attn_1.norm", middle)
        for name in ("q", "k", "v", "proj_out"):
            yield from _layer(f"{side}.mid.attn_1.{name}", middle, middle, 1, 1)
        yield from _vae_block(f"{side}.mid.block_2", middle, middle)
        yield from _norm(f"{side}.norm_out", channels if up else middle)
        yield from _layer(f"{side}.conv_out", *((3, channels, 3, 3) if up else (8, middle, 3, 3)))
    yield from _layer("quant_conv", 8, 8, 1, 1)
    yield from _layer("post_quant_conv", 4, 4, 1, 1)


def _vae_block(base: str, inside: int, out: int) -> Iterator[Entry]:
    yield from _norm(f"{base}.norm1", inside)
    yield from _layer(f"{base}.conv1", out, inside, 3, 3)
    yield from _norm(f"{base}.norm2", out)
    yield from _layer(f"{base}.conv2", out, out, 3, 3)
    if inside != out:
        yield from _layer(f"{base}.nin_shortcut", out, inside, 1, 1)


def _layer(base: str, *shape: int) -> Iterator[Entry]:
    yield f"{base}.weight", shape
    yield f"{base}.bias", shape[:1]


def _norm(base: str, width: int) -> Iterator[Entry]:
    yield f"{base}.weight", (width,)
    yield f"{base}.bias", (width,)
