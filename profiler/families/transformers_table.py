"""Architectures that run by transformers' own code, layer by layer over the paged KV cache.

Each has been compared with transformers' generate (tests/pdmux_actor/test_transformers_decoders.py). What has a file of
its own in this folder is not here. The last column: SGLang 0.5.23 has it, too.
"""

from collections.abc import Mapping
from types import MappingProxyType

from profiler.families.config_readers import (
    GATED,
    GATED_TIED,
    GEMMA,
    LATENT_MIXTURE,
    LATENT_TIED,
    MIXTURE,
    MIXTURE_TIED,
    MULTI_QUERY,
    PLAIN,
    PLAIN_TIED,
)
from profiler.families.entry import ModelFamily

_OWN_PRODUCTS = ("GPT2LMHeadModel",)  # a Conv1D of transformers'
_CHANGE_SCORES = frozenset(
    {
        "FlintForCausalLM",
        "Gemma2ForCausalLM",
        "GraniteMoeSWAForCausalLM",
        "GraniteSWAForCausalLM",
        "VaultGemmaForCausalLM",
    }
)
_SLIDE = frozenset(
    {
        "AfmoeForCausalLM",
        "BeamForCausalLM",
        "Cohere2ForCausalLM",
        "Cohere2MoeForCausalLM",
        "CwmForCausalLM",
        "Exaone4ForCausalLM",
        "ExaoneMoeForCausalLM",
        "FlintForCausalLM",
        "Gemma2ForCausalLM",
        "Gemma3ForCausalLM",
        "GraniteMoeSWAForCausalLM",
        "GraniteSWAForCausalLM",
        "Kolibri1ForCausalLM",
        "LagunaForCausalLM",
        "MellumForCausalLM",
        "Ministral3ForCausalLM",
        "MinistralForCausalLM",
        "ModernBertDecoderForCausalLM",
        "Olmo3ForCausalLM",
        "Phi3ForCausalLM",
        "PhimoeForCausalLM",
        "Starcoder2ForCausalLM",
        "VaultGemmaForCausalLM",
    }
)
_ROWS = (
    ("AXK1ForCausalLM", "axk1", "A.X K1", LATENT_MIXTURE, False),
    ("AfmoeForCausalLM", "afmoe", "Arcee AFMoE (Trinity)", MIXTURE, True),
    ("ApertusForCausalLM", "apertus", "Swiss AI Apertus", PLAIN, True),
    ("ArceeForCausalLM", "arcee", "Arcee AFM 4.5B", PLAIN, True),
    ("AriaTextForCausalLM", "aria_text", "the text part of Aria", MIXTURE, False),
    ("BeamForCausalLM", "beam", "Beam", MIXTURE, True),
    ("BioGptForCausalLM", "biogpt", "BioGPT", PLAIN_TIED, False),
    ("BitNetForCausalLM", "bitnet", "BitNet b1.58, unpacked", GATED, False),
    ("Cohere2ForCausalLM", "cohere2", "Command R7B and A", GATED_TIED, True),
    ("Cohere2MoeForCausalLM", "cohere2_moe", "Cohere 2, mixture of experts", MIXTURE_TIED, True),
    ("CohereForCausalLM", "cohere", "Command R and R+, Aya Expanse", GATED_TIED, True),
    ("CwmForCausalLM", "cwm", "Code World Model", GATED, False),
    ("DeepseekV2ForCausalLM", "deepseek_v2", "DeepSeek V2, its latents expanded in the KV cache", LATENT_MIXTURE, True),
    (
        "DeepseekV3ForCausalLM",
        "deepseek_v3",
        "DeepSeek V3 and R1, their latents expanded in the KV cache",
        LATENT_MIXTURE,
        True,
    ),
    ("Dots1ForCausalLM", "dots1", "dots.llm1", MIXTURE, False),
    ("Ernie4_5ForCausalLM", "ernie4_5", "ERNIE 4.5, dense", GATED_TIED, False),
    ("Ernie4_5_MoeForCausalLM", "ernie4_5_moe", "ERNIE 4.5, mixture of experts", MIXTURE_TIED, True),
    ("Exaone4ForCausalLM", "exaone4", "EXAONE 4", GATED, True),
    ("ExaoneMoeForCausalLM", "exaone_moe", "K-EXAONE", MIXTURE, True),
    ("FlexOlmoForCausalLM", "flex_olmo", "FlexOlmo", MIXTURE, False),
    ("FlintForCausalLM", "flint", "Flint", MIXTURE, False),
    ("GPT2LMHeadModel", "gpt2", "GPT-2, DistilGPT-2, GPT-SW3", PLAIN_TIED, True),
    ("GPTBigCodeForCausalLM", "gpt_bigcode", "SantaCoder, StarCoder 1", MULTI_QUERY, True),
    ("GPTNeoXForCausalLM", "gpt_neox", "Pythia, GPT-NeoX 20B, Dolly", PLAIN, False),
    ("Gemma2ForCausalLM", "gemma2", "Gemma 2", GEMMA, True),
    ("Gemma3ForCausalLM", "gemma3_text", "Gemma 3 270M and 1B, the text part of larger ones", GEMMA, True),
    ("GemmaForCausalLM", "gemma", "Gemma 1", GEMMA, True),
    ("Glm4ForCausalLM", "glm4", "GLM-4 0414", GATED, True),
    ("Glm4MoeForCausalLM", "glm4_moe", "GLM-4.5, 4.6 and 4.7", MIXTURE, True),
    ("GlmForCausalLM", "glm", "GLM-4 9B", GATED, False),
    ("GraniteForCausalLM", "granite", "Granite 3 and 4, dense", GATED, True),
    ("GraniteMoeForCausalLM", "granitemoe", "Granite 3, mixture of experts", MIXTURE, True),
    ("GraniteMoeSWAForCausalLM", "granitemoe_swa", "Granite with experts and a sliding window", MIXTURE, True),
    ("GraniteMoeSharedForCausalLM", "granitemoeshared", "Granite with shared experts", MIXTURE, True),
    ("GraniteSWAForCausalLM", "granite_swa", "Granite with a sliding window", GATED_TIED, True),
    ("HYV3ForCausalLM", "hy_v3", "Hunyuan 3", MIXTURE, True),
    ("HeliumForCausalLM", "helium", "Helium", GATED, False),
    ("HunYuanDenseV1ForCausalLM", "hunyuan_v1_dense", "Hunyuan, dense", GATED, True),
    ("HunYuanMoEV1ForCausalLM", "hunyuan_v1_moe", "Hunyuan A13B", MIXTURE, True),
    ("HyperCLOVAXForCausalLM", "hyperclovax", "HyperCLOVA X SEED", GATED, False),
    ("Jais2ForCausalLM", "jais2", "Jais 2", PLAIN, False),
    ("Kolibri1ForCausalLM", "kolibri1", "Kolibri 1", MIXTURE, False),
    ("LagunaForCausalLM", "laguna", "Laguna", MIXTURE, True),
    ("MellumForCausalLM", "mellum", "Mellum 2", MIXTURE, True),
    ("MiniCPM3ForCausalLM", "minicpm3", "MiniCPM 3", LATENT_TIED, True),
    ("MiniMaxM2ForCausalLM", "minimax_m2", "MiniMax M2", MIXTURE, True),
    ("Ministral3ForCausalLM", "ministral3", "Ministral 3", GATED, True),
    ("MinistralForCausalLM", "ministral", "Ministral 8B", GATED, False),
    ("ModernBertDecoderForCausalLM", "modernbert-decoder", "Ettin decoders", GATED_TIED, False),
    ("NanoChatForCausalLM", "nanochat", "nanochat", PLAIN, False),
    ("NemotronForCausalLM", "nemotron", "Nemotron 4 and Minitron", PLAIN, False),
    ("OPTForCausalLM", "opt", "OPT 125M to 66B", PLAIN_TIED, True),
    ("Olmo2ForCausalLM", "olmo2", "OLMo 2", GATED, True),
    ("Olmo3ForCausalLM", "olmo3", "OLMo 3", GATED, False),
    ("OlmoForCausalLM", "olmo", "OLMo 1", GATED, True),
    ("OlmoeForCausalLM", "olmoe", "OLMoE", MIXTURE, True),
    ("PersimmonForCausalLM", "persimmon", "Persimmon 8B", PLAIN, True),
    ("Phi3ForCausalLM", "phi3", "Phi 3, 3.5 and 4, dense", GATED, True),
    ("PhiForCausalLM", "phi", "Phi 1, 1.5 and 2", PLAIN, True),
    ("PhimoeForCausalLM", "phimoe", "Phi 3.5 MoE", MIXTURE, False),
    ("Qwen2MoeForCausalLM", "qwen2_moe", "Qwen 1.5 and 2, mixture of experts", MIXTURE, True),
    ("SeedOssForCausalLM", "seed_oss", "Seed-OSS 36B", GATED, False),
    ("SmolLM3ForCausalLM", "smollm3", "SmolLM 3", GATED_TIED, False),
    ("SolarOpenForCausalLM", "solar_open", "Solar Open", MIXTURE, False),
    ("StableLmForCausalLM", "stablelm", "StableLM 2 and Zephyr", GATED, True),
    ("Starcoder2ForCausalLM", "starcoder2", "StarCoder 2", PLAIN_TIED, True),
    ("VaultGemmaForCausalLM", "vaultgemma", "VaultGemma", GEMMA, False),
    ("YoutuForCausalLM", "youtu", "Youtu-LLM", LATENT_TIED, False),
)
SERVED: Mapping[str, ModelFamily] = MappingProxyType(
    {
        name: ModelFamily(
            name=name,
            model_type=model_type,
            models=models,
            names=reader.names,
            experts=reader.experts,
            in_sglang=in_sglang,
            in_linear_modules=name not in _OWN_PRODUCTS,
            changes_scores=name in _CHANGE_SCORES,
            slides=name in _SLIDE,
        )
        for name, model_type, models, reader, in_sglang in _ROWS
    }
)
