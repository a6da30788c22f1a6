"""The smallest random model of every transformer family that ComfyUI itself detects, and its text
encoders, shrunken.

Shapes come from ComfyUI's own modules on the meta device. Some widths it does not read from the
file: there its detection is asked about the smallest file that it takes, of hundreds of millions of
weights, without making them, and what it finds is built with fewer channels (`shrunk`). Text
encoders have three thin blocks and few different token embeddings; tokenizers, templates and the
widths of text are real, but for tokenizers that a checkpoint brings.
"""

from __future__ import annotations

import inspect
import json
import math
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import lru_cache, partial
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from mini_chat import pieces as pieces
from mini_checkpoints import te_options
from torch import Tensor, nn

DISTINCT = 1021
"""Different token embeddings."""
_T5 = {"num_layers": 2, "d_ff": 24, "d_kv": 8, "num_heads": 2}
_CHAT = {
    "num_hidden_layers": 3,
    "intermediate_size": 32,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
}
_VISION = {"hidden_size": 64, "intermediate_size": 32}
_CHATS = (
    "qwen3_06b",
    "qwen3_4b",
    "qwen3_8b",
    "qwen3vl_4b",
    "qwen25_7b",
    "gemma2_2b",
    "mistral3_24b",
)
_BLOCKS = {"qwen3vl_4b": 12, "qwen25_7b": 4}
"""More blocks, where twelve states are read, or the third from the last."""
_CHAT_TABLE = {"vocab_size": DISTINCT}
_HUNYUAN = {
    "vec_in_dim": None,
    "context_in_dim": 3584,
    "hidden_size": 128,
    "mlp_ratio": 4.0,
    "num_heads": 1,
    "depth": 1,
    "depth_single_blocks": 1,
    "theta": 256,
    "qkv_bias": True,
    "guidance_embed": False,
    "byt5": True,
    "meanflow": False,
}
_FLUX = {
    "in_channels": 16,
    "out_channels": 16,
    "vec_in_dim": 768,
    "context_in_dim": 4096,
    "hidden_size": 3072,
    "mlp_ratio": 4.0,
    "num_heads": 24,
    "depth": 1,
    "depth_single_blocks": 0,
    "axes_dim": [16, 56, 56],
    "theta": 10_000,
    "patch_size": 2,
    "qkv_bias": True,
    "txt_ids_dims": [],
}
_FLUX2 = {
    **_FLUX,
    "in_channels": 128,
    "out_channels": 128,
    "vec_in_dim": None,
    "mlp_ratio": 3.0,
    "axes_dim": [32, 32, 32, 32],
    "theta": 2000,
    "patch_size": 1,
    "qkv_bias": False,
    "txt_ids_dims": [3],
    "global_modulation": True,
    "mlp_silu_act": True,
    "ops_bias": False,
}
_FEW_IN_FLUX2 = {"hidden_size": 64, "num_heads": 2, "axes_dim": [8, 8, 8, 8]}
_GUIDANCE = {"in_dim": 64, "out_dim": 3072, "hidden_dim": 5120, "n_layers": 5}
_SD3 = {
    "in_channels": 16,
    "depth": 1,
    "input_size": None,
    "adm_in_channels": 2048,
    "num_patches": 36864,
}
_SD3_TEXT = {"target": "torch.nn.Linear", "params": {"in_features": 4096, "out_features": 64}}
_SD35_TEXT = {"target": "torch.nn.Linear", "params": {"in_features": 4096, "out_features": 128}}
_LUMINA = {"patch_size": 2, "in_channels": 16, "qk_norm": True, "n_layers": 1}
_FEW = {"hidden_size": 48, "num_heads": 2, "axes_dim": [8, 8, 8]}
_FEW_IN_LUMINA = {
    "dim": 48,
    "n_heads": 2,
    "n_kv_heads": 2,
    "axes_dims": [8, 8, 8],
    "multiple_of": 16,
}


@dataclass(frozen=True)
class Mini:
    """How one of them is made."""

    family: str
    """Its row in the registry."""
    module: str
    """ComfyUI's class of the diffusion model: `module:Class` below `comfy.ldm`."""
    config: dict[str, Any]
    tokenizer: str
    """ComfyUI's class of the tokenizer: `module:Class` below `comfy.text_encoders`."""
    encoder: str
    """The class of the text encoders there, or a function that makes it."""
    made_by: dict[str, Any] | None = field(default_factory=dict)
    """What that function is called with; None: it is the class."""
    pieces: dict[str, int] | None = None
    """Special tokens of a tokenizer that the checkpoint brings."""
    size: tuple[int, ...] = (8, 8)
    """Of the latent."""
    shrunk: dict[str, Any] = field(default_factory=dict)
    """What to change of the configuration that ComfyUI detects; empty: its loader makes the model
    from tensors.
    """
    pads_left: bool = False
    """Whether the model gets rows of zeros before those of a prompt."""
    tokenizing: dict[str, int] = field(default_factory=dict)
    """Options of the tokenizer."""
    needs: str = ""
    """What its module must have too: the older tokenizer of Mistral does not load any more."""
    parts: dict[str, dict[str, Any]] = field(default_factory=dict)
    """{class in the same module: what it is made with instead} of parts that no configuration
    describes.
    """


_sd3 = {"tokenizer": "sd3_clip:SD3Tokenizer", "encoder": "sd3_clip:sd3_clip"}
_COSMOS = {
    "max_img_h": 240,
    "max_img_w": 240,
    "max_frames": 128,
    "in_channels": 16,
    "out_channels": 16,
    "patch_spatial": 2,
    "patch_temporal": 1,
    "model_channels": 2048,
    "crossattn_emb_channels": 1024,
    "pos_emb_cls": "rope3d",
    "num_blocks": 2,
    "use_adaln_lora": True,
    "adaln_lora_dim": 256,
}
_FEW_IN_COSMOS = {"model_channels": 64, "num_heads": 2, "adaln_lora_dim": 8}
_flux = {"tokenizer": "flux:FluxTokenizer", "encoder": "flux:flux_clip"}
_mmdit = "modules.diffusionmodules.mmdit:OpenAISignatureMMDITWrapper"
MINIS: dict[str, Mini] = {
    "sd3": Mini(
        "sd3",
        _mmdit,
        {**_SD3, "context_embedder_config": _SD3_TEXT, "pos_embed_max_size": 192},
        **_sd3,
    ),
    "sd3.5-medium": Mini(
        *("sd3", _mmdit),
        {**_SD3, "depth": 2, "context_embedder_config": _SD35_TEXT, "pos_embed_max_size": 192}
        | {"qk_norm": "rms", "x_block_self_attn_layers": [0]},
        **_sd3,
    ),
    "sd3-without-t5": Mini(
        *("sd3", _mmdit),
        {**_SD3, "context_embedder_config": _SD3_TEXT, "pos_embed_max_size": 192},
        **_sd3,
        made_by={"t5": False},
    ),
    "sd3-t5-alone": Mini(
        *("sd3", _mmdit),
        {**_SD3, "context_embedder_config": _SD3_TEXT, "pos_embed_max_size": 192},
        **_sd3,
        made_by={"clip_l": False, "clip_g": False},
    ),
    "flux-dev": Mini(
        "flux-dev", "flux.model:Flux", {**_FLUX, "guidance_embed": True}, **_flux, shrunk=_FEW
    ),
    "flux-schnell": Mini(
        "flux-schnell", "flux.model:Flux", {**_FLUX, "guidance_embed": False}, **_flux, shrunk=_FEW
    ),
    "flux2-dev": Mini(
        *("flux2-dev", "flux.model:Flux"),
        {
            **_FLUX2,
            "context_in_dim": 15360,
            "hidden_size": 6144,
            "num_heads": 48,
            "guidance_embed": True,
        },
        *("flux:Flux2Tokenizer", "flux:flux2_te"),
        shrunk=_FEW_IN_FLUX2,
        pads_left=True,
        needs="from_tekken_json",
    ),
    "flux2-klein-4b": Mini(
        *("flux2-klein-4b", "flux.model:Flux"),
        {**_FLUX2, "context_in_dim": 7680, "guidance_embed": False},
        *("flux:KleinTokenizer", "flux:klein_te"),
        shrunk=_FEW_IN_FLUX2,
        pads_left=True,
        tokenizing={"qwen3_4b_min_length": 80},
    ),
    "flux2-klein-9b": Mini(
        *("flux2-klein-9b", "flux.model:Flux"),
        {
            **_FLUX2,
            "context_in_dim": 12288,
            "hidden_size": 4096,
            "num_heads": 32,
            "guidance_embed": False,
        },
        *("flux:KleinTokenizer8B", "flux:klein_te", {"model_type": "qwen3_8b"}),
        shrunk=_FEW_IN_FLUX2,
        pads_left=True,
        tokenizing={"qwen3_8b_min_length": 80},
    ),
    "chroma": Mini(
        *("chroma", "chroma.model:Chroma"),
        {**_FLUX, **_GUIDANCE, "in_channels": 64, "out_channels": 64, "vec_in_dim": None},
        *("pixart_t5:PixArtTokenizer", "pixart_t5:pixart_te"),
        shrunk=_FEW | {"out_dim": 48, "hidden_dim": 32, "n_layers": 1},
    ),
    "auraflow": Mini(
        *("auraflow", "aura.mmdit:MMDiT"),
        {"n_double_layers": 1, "n_layers": 2, "max_seq": 64, "cond_seq_dim": 2048},
        *("aura_t5:AuraT5Tokenizer", "aura_t5:AuraT5Model", None),
        shrunk={"dim": 64, "n_heads": 2, "global_conddim": 64},
    ),
    "z-image": Mini(
        *("z-image", "lumina.model:NextDiT"),
        {
            **_LUMINA,
            "dim": 3840,
            "cap_feat_dim": 2560,
            "n_heads": 30,
            "n_kv_heads": 30,
            "axes_dims": [32, 48, 48],
        }
        | {"axes_lens": [1536, 512, 512], "rope_theta": 256.0, "ffn_dim_multiplier": 8 / 3}
        | {"z_image_modulation": True, "time_scale": 1000.0, "pad_tokens_multiple": 32},
        *("z_image:ZImageTokenizer", "z_image:te"),
        # its modulation is 256 wide
        shrunk=_FEW_IN_LUMINA | {"dim": 288, "axes_dims": [48, 48, 48]},
    ),
    "lumina-2": Mini(
        *("lumina-2", "lumina.model:NextDiT"),
        {
            **_LUMINA,
            "dim": 2304,
            "cap_feat_dim": 2304,
            "n_heads": 24,
            "n_kv_heads": 8,
            "axes_dims": [32, 32, 32],
        }
        | {"axes_lens": [300, 512, 512], "rope_theta": 10000.0, "ffn_dim_multiplier": 4.0},
        *("lumina2:LuminaTokenizer", "lumina2:te"),
        pieces={"pad_id": 0, "eos_id": 1, "bos_id": 2, "unk_id": 3},
        shrunk=_FEW_IN_LUMINA,
    ),
    "qwen-image": Mini(
        *("qwen-image", "qwen_image.model:QwenImageTransformer2DModel"),
        {"in_channels": 64, "num_layers": 1},
        *("qwen_image:QwenImageTokenizer", "qwen_image:te"),
        size=(1, 8, 8),
        shrunk={"attention_head_dim": 24, "num_attention_heads": 2, "axes_dims_rope": (8, 8, 8)},
    ),
    "krea-2": Mini(
        *("krea-2", "krea2.model:SingleStreamDiT"),
        {"features": 128, "heads": 1, "kvheads": 1, "layers": 2},
        *("krea2:Krea2Tokenizer", "krea2:te"),
        shrunk={"multiplier": 1},
    ),
    "hunyuan-image-2.1": Mini(
        *("hunyuan-image-2.1", "hunyuan_video.model:HunyuanVideo"),
        {**_HUNYUAN, "in_channels": 64, "out_channels": 64, "patch_size": [1, 1]}
        | {"axes_dim": [64, 64], "use_cond_type_embedding": False}
        | {"vision_in_dim": None, "meanflow_sum": False},
        *("hunyuan_image:HunyuanImageTokenizer", "hunyuan_image:te"),
    ),
    "hunyuan-video-1.5": Mini(
        *("hunyuan-video-1.5", "hunyuan_video.model:HunyuanVideo"),
        {**_HUNYUAN, "in_channels": 65, "out_channels": 32, "patch_size": [1, 1, 1]}
        | {"axes_dim": [16, 56, 56], "use_cond_type_embedding": True}
        | {"vision_in_dim": 1152, "meanflow_sum": True},
        *("hunyuan_video:HunyuanVideo15Tokenizer", "hunyuan_image:te"),
        size=(1, 8, 8),
    ),
    "wan": Mini(
        *("wan", "wan.model:WanModel"),
        {
            "dim": 256,
            "ffn_dim": 64,
            "num_heads": 2,
            "num_layers": 2,
            "in_dim": 16,
            "out_dim": 16,
            "eps": 1e-6,
        },
        *("wan:WanT5Tokenizer", "wan:te"),
        pieces={"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1},
        size=(1, 8, 8),
    ),
    "ltxv": Mini(
        *("ltxv", "lightricks.model:LTXVModel"),
        {"num_layers": 2, "attention_head_dim": 8, "cross_attention_dim": 256},
        *("lt:LTXVT5Tokenizer", "lt:ltxv_te"),
        size=(1, 4, 4),
    ),
    "cosmos-predict2": Mini(
        *("cosmos-predict2", "cosmos.predict2:MiniTrainDIT", _COSMOS),
        *("cosmos:CosmosT5Tokenizer", "cosmos:te"),
        size=(1, 8, 8),
        shrunk=_FEW_IN_COSMOS,
    ),
    "anima": Mini(
        *("anima", "anima.model:Anima", _COSMOS),
        *("anima:AnimaTokenizer", "anima:te"),
        size=(1, 8, 8),
        shrunk=_FEW_IN_COSMOS,
        parts={"LLMAdapter": {"model_dim": 64, "num_layers": 2, "num_heads": 2}},
    ),
}


def in_this_host(name: str) -> bool:
    """Whether this version of ComfyUI has the family."""
    module, _, encoder = MINIS[name].encoder.partition(":")
    encoder = MINIS[name].needs or encoder
    try:
        import_module(f"comfy.ldm.{MINIS[name].module.partition(':')[0]}")
        return hasattr(import_module(f"comfy.text_encoders.{module}"), encoder)
    except ModuleNotFoundError:
        return False


def smallest(name: str) -> dict[str, Tensor]:
    """The smallest file's tensors on the meta device, keys relative to the model."""
    from comfy.ops import disable_weight_init

    mini = MINIS[name]
    extra = {} if name == "auraflow" or name.startswith("sd3") else {"image_model": None}
    options = {"dtype": torch.float32, "device": "meta", "operations": disable_weight_init}
    with _small_parts(mini):
        made = _named("comfy.ldm", mini.module)(**mini.config, **extra, **options)
    return made.state_dict()


@contextmanager
def _small_parts(mini: Mini) -> Iterator[None]:
    """While a model is made."""
    module = import_module(f"comfy.ldm.{mini.module.partition(':')[0]}")
    with ExitStack() as stack:
        for name, changes in mini.parts.items():
            smaller = partial(getattr(module, name), **changes)
            stack.enter_context(patch.object(module, name, smaller))
        yield


def load_model(name: str, dtype: torch.dtype = torch.float16, file: Path | None = None) -> Any:
    """MODEL with random weights, or with those of a file that was saved from one."""
    import comfy.model_detection
    import comfy.sd
    import comfy.utils

    found, saved = (
        smallest(name),
        (comfy.utils.load_torch_file(str(file)) if file is not None else None),
    )
    if saved is not None:
        saved = {key.removeprefix("model.diffusion_model."): value for key, value in saved.items()}
    with torch.inference_mode():
        if not MINIS[name].shrunk:
            tensors = saved or {
                key: _tame(key, value.shape).to(dtype) for key, value in found.items()
            }
            return comfy.sd.load_diffusion_model_state_dict(tensors, {"dtype": dtype})
        detected = comfy.model_detection.model_config_from_unet(found, "")
        with _small_parts(MINIS[name]):
            return _shrunk(detected, MINIS[name].shrunk, dtype, saved)


def _shrunk(
    detected: Any, changes: dict[str, Any], dtype: torch.dtype, saved: dict[str, Tensor] | None
) -> Any:
    """A model of the class that ComfyUI detected, made with fewer channels."""
    from comfy.model_patcher import ModelPatcher

    config = type(detected)({**detected.unet_config, **changes})
    config.set_inference_dtype(dtype, torch.float32)
    model, device = config.get_model({}, ""), torch.device("cpu")
    values = saved or {
        key: _tame(key, value.shape) for key, value in model.diffusion_model.state_dict().items()
    }
    model.diffusion_model.load_state_dict(values)
    return ModelPatcher(model.to(device), load_device=device, offload_device=device)


@contextmanager
def _small_vision() -> Iterator[None]:
    """While a text encoder is made that can also see images."""
    with ExitStack() as stack:
        qwen_vl = import_module("comfy.text_encoders.qwen_vl")
        whole = qwen_vl.Qwen2VLVisionTransformer

        def smaller(**options: Any) -> Any:
            return whole(**{**options, **_VISION, "num_layers": 1})

        stack.enter_context(patch.object(qwen_vl, whole.__name__, smaller))
        with suppress(ModuleNotFoundError):  # ComfyUI 0.7.0
            qwen3vl = import_module("comfy.text_encoders.qwen3vl")
            sizes = {**_VISION, "depth": 1, "deepstack_visual_indexes": [0]}
            changed = dict.fromkeys(qwen3vl.QWEN3VL_VISION, sizes)
            stack.enter_context(patch.dict(qwen3vl.QWEN3VL_VISION, changed))
        yield


def load_text(name: str, blocks: int | None = None, **options: Any) -> Any:
    """CLIP with the family's own tokenizers and shrunken encoders, of few `blocks`."""
    import comfy.sd

    mini = MINIS[name]
    encoder = _named("comfy.text_encoders", mini.encoder)
    target = SimpleNamespace(
        params={},
        tokenizer=_named("comfy.text_encoders", mini.tokenizer),
        clip=encoder if mini.made_by is None else encoder(**mini.made_by),
    )
    shapes = {
        f"{kind}_model_config": {**_T5, "vocab_size": DISTINCT}
        for kind in ("t5xxl", "umt5xxl", "pile_t5xl")
    }
    shapes |= {f"{kind}_model_config": {**_CHAT, **_CHAT_TABLE} for kind in _CHATS}
    for kind in _CHATS:
        if count := blocks or _BLOCKS.get(kind):
            shapes[f"{kind}_model_config"]["num_hidden_layers"] = count
    if "byt5" in inspect.signature(encoder).parameters:  # ByT5 has no name there
        shapes["_model_config"] = dict(_T5)
    data = {"spiece_model": pieces(**mini.pieces)} if mini.pieces else {}
    data["tekken_model"] = _tekken()
    with torch.inference_mode(), _small_vision():
        clip = comfy.sd.CLIP(
            target, tokenizer_data=data, model_options=te_options() | shapes | options
        )
        for option, value in mini.tokenizing.items():
            clip.set_tokenizer_option(option, value)
        for piece in clip.cond_stage_model.children():
            if isinstance(piece.layer, list):  # which states are read, of three blocks
                piece.layer = list(range(len(piece.layer)))
                piece.options_default = (piece.layer, *piece.options_default[1:])
            if piece.transformer.get_input_embeddings().num_embeddings == DISTINCT:
                piece.transformer.set_input_embeddings(
                    Few(piece.transformer.get_input_embeddings())
                )
        for key, value in clip.cond_stage_model.named_parameters():
            table = "embed" in key or ".shared." in key
            value.copy_(_tame(key, value.shape, 0.02 if table else None, decays=table))
    return clip


class Few(nn.Module):
    """A table that gives tokens beyond its end embeddings from its beginning."""

    comfy_cast_weights = False
    """As a table of ComfyUI's that is used as it is; encoders that write ask for it."""

    def __init__(self, table: Any) -> None:
        super().__init__()
        self.table = table

    @property
    def weight(self) -> Tensor:
        return self.table.weight

    def forward(self, tokens: Tensor, **options: Any) -> Tensor:
        return self.table(tokens % DISTINCT, **options)


def _named(package: str, name: str) -> Callable[..., Any]:
    module, _, attribute = name.partition(":")
    return getattr(import_module(f"{package}.{module}"), attribute)


@lru_cache
def _pool() -> Tensor:
    return torch.randn(2**20 + 7, generator=torch.Generator().manual_seed(3))


def _tame(key: str, shape: torch.Size, size: float | None = 0.03, decays: bool = False) -> Tensor:
    """Random matrices and kernels, another stretch of the pool for each key; norms of one, biases
    of zero.

    `size` None: as large as keeps the size of what goes in.
    """
    if len(shape) < 2:
        return torch.ones(shape) if key.endswith(("weight", "scale")) else torch.zeros(shape)
    start, count = sum(key.encode()) * 7919 % 2**20, math.prod(shape)
    pool = _pool()
    total = (
        pool[start : start + count]
        if start + count <= len(pool)
        else pool.repeat(count // len(pool) + 2)[start:]
    )
    values = total[:count].reshape(shape) * (size or shape[-1] ** -0.5)
    return values * torch.arange(1, shape[-1] + 1) ** -0.5 * shape[-1] ** 0.25 if decays else values


@lru_cache
def _tekken() -> Tensor:
    """Mistral's kind of tokenizer, of single bytes."""
    special = ("<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]")
    model = {
        "config": {"default_vocab_size": 512, "default_num_special_tokens": 16},
        "vocab": [
            {"rank": byte, "token_bytes": b64encode(bytes([byte])).decode()} for byte in range(256)
        ],
        "special_tokens": [
            {"rank": rank, "token_str": token} for rank, token in enumerate(special)
        ],
    }
    return torch.ByteTensor(list(json.dumps(model).encode()))
