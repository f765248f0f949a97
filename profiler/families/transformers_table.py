"""Architectures that run by transformers' own code, layer by layer over the paged KV cache.

Each has been compared with transformers' generate (tests/pdmux_actor/test_transformers_decoders.py). What has a file of
its own in this folder is not here. A row ends with what it has of these: SGLang 0.5.23 serves it, too; layers see a
window; scores of attention are changed (ModelFamily says which); its products are no torch.nn.Linear.
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
    ConfigReader,
)
from profiler.families.entry import ModelFamily

_SGLANG, _SLIDES, _CHANGES_SCORES, _OWN_PRODUCTS = "SGLang", "slides", "changes scores", "own products"
_ROWS: tuple[tuple[str, str, str, ConfigReader, *tuple[str, ...]], ...] = (
    ("AXK1ForCausalLM", "axk1", "A.X K1", LATENT_MIXTURE),
    ("AfmoeForCausalLM", "afmoe", "Arcee AFMoE (Trinity)", MIXTURE, _SGLANG, _SLIDES),
    ("ApertusForCausalLM", "apertus", "Swiss AI Apertus", PLAIN, _SGLANG),
    ("ArceeForCausalLM", "arcee", "Arcee AFM 4.5B", PLAIN, _SGLANG),
    ("AriaTextForCausalLM", "aria_text", "the text part of Aria", MIXTURE),
    ("BeamForCausalLM", "beam", "Beam", MIXTURE, _SGLANG, _SLIDES),
    ("BioGptForCausalLM", "biogpt", "BioGPT", PLAIN_TIED),
    ("BitNetForCausalLM", "bitnet", "BitNet b1.58, unpacked", GATED),
    ("Cohere2ForCausalLM", "cohere2", "Command R7B and A", GATED_TIED, _SGLANG, _SLIDES),
    ("Cohere2MoeForCausalLM", "cohere2_moe", "Cohere 2, mixture of experts", MIXTURE_TIED, _SGLANG, _SLIDES),
    ("CohereForCausalLM", "cohere", "Command R and R+, Aya Expanse", GATED_TIED, _SGLANG),
    ("CwmForCausalLM", "cwm", "Code World Model", GATED, _SLIDES),
    (
        "DeepseekV2ForCausalLM",
        "deepseek_v2",
        "DeepSeek V2, its latents expanded in the KV cache",
        LATENT_MIXTURE,
        _SGLANG,
    ),
    (
        "DeepseekV3ForCausalLM",
        "deepseek_v3",
        "DeepSeek V3 and R1, their latents expanded in the KV cache",
        LATENT_MIXTURE,
        _SGLANG,
    ),
    ("Dots1ForCausalLM", "dots1", "dots.llm1", MIXTURE),
    ("Ernie4_5ForCausalLM", "ernie4_5", "ERNIE 4.5, dense", GATED_TIED),
    ("Ernie4_5_MoeForCausalLM", "ernie4_5_moe", "ERNIE 4.5, mixture of experts", MIXTURE_TIED, _SGLANG),
    ("Exaone4ForCausalLM", "exaone4", "EXAONE 4", GATED, _SGLANG, _SLIDES),
    ("ExaoneMoeForCausalLM", "exaone_moe", "K-EXAONE", MIXTURE, _SGLANG, _SLIDES),
    ("FlexOlmoForCausalLM", "flex_olmo", "FlexOlmo", MIXTURE),
    ("FlintForCausalLM", "flint", "Flint", MIXTURE, _SLIDES, _CHANGES_SCORES),
    ("GPT2LMHeadModel", "gpt2", "GPT-2, DistilGPT-2, GPT-SW3", PLAIN_TIED, _SGLANG, _OWN_PRODUCTS),
    ("GPTBigCodeForCausalLM", "gpt_bigcode", "SantaCoder, StarCoder 1", MULTI_QUERY, _SGLANG),
    ("GPTNeoXForCausalLM", "gpt_neox", "Pythia, GPT-NeoX 20B, Dolly", PLAIN),
    ("Gemma2ForCausalLM", "gemma2", "Gemma 2", GEMMA, _SGLANG, _SLIDES, _CHANGES_SCORES),
    ("Gemma3ForCausalLM", "gemma3_text", "Gemma 3 270M and 1B, the text part of larger ones", GEMMA, _SGLANG, _SLIDES),
    ("GemmaForCausalLM", "gemma", "Gemma 1", GEMMA, _SGLANG),
    ("Glm4ForCausalLM", "glm4", "GLM-4 0414", GATED, _SGLANG),
    ("Glm4MoeForCausalLM", "glm4_moe", "GLM-4.5, 4.6 and 4.7", MIXTURE, _SGLANG),
    ("GlmForCausalLM", "glm", "GLM-4 9B", GATED),
    ("GraniteForCausalLM", "granite", "Granite 3 and 4, dense", GATED, _SGLANG),
    ("GraniteMoeForCausalLM", "granitemoe", "Granite 3, mixture of experts", MIXTURE, _SGLANG),
    (
        "GraniteMoeSWAForCausalLM",
        "granitemoe_swa",
        "Granite with experts and a sliding window",
        MIXTURE,
        _SGLANG,
        _SLIDES,
        _CHANGES_SCORES,
    ),
    ("GraniteMoeSharedForCausalLM", "granitemoeshared", "Granite with shared experts", MIXTURE, _SGLANG),
    (
        "GraniteSWAForCausalLM",
        "granite_swa",
        "Granite with a sliding window",
        GATED_TIED,
        _SGLANG,
        _SLIDES,
        _CHANGES_SCORES,
    ),
    ("HYV3ForCausalLM", "hy_v3", "Hunyuan 3", MIXTURE, _SGLANG),
    ("HeliumForCausalLM", "helium", "Helium", GATED),
    ("HunYuanDenseV1ForCausalLM", "hunyuan_v1_dense", "Hunyuan, dense", GATED, _SGLANG),
    ("HunYuanMoEV1ForCausalLM", "hunyuan_v1_moe", "Hunyuan A13B", MIXTURE, _SGLANG),
    ("HyperCLOVAXForCausalLM", "hyperclovax", "HyperCLOVA X SEED", GATED),
    ("Jais2ForCausalLM", "jais2", "Jais 2", PLAIN),
    ("Kolibri1ForCausalLM", "kolibri1", "Kolibri 1", MIXTURE, _SLIDES),
    ("LagunaForCausalLM", "laguna", "Laguna", MIXTURE, _SGLANG, _SLIDES),
    ("MellumForCausalLM", "mellum", "Mellum 2", MIXTURE, _SGLANG, _SLIDES),
    ("MiniCPM3ForCausalLM", "minicpm3", "MiniCPM 3", LATENT_TIED, _SGLANG),
    ("MiniMaxM2ForCausalLM", "minimax_m2", "MiniMax M2", MIXTURE, _SGLANG),
    ("Ministral3ForCausalLM", "ministral3", "Ministral 3", GATED, _SGLANG, _SLIDES),
    ("MinistralForCausalLM", "ministral", "Ministral 8B", GATED, _SLIDES),
    ("ModernBertDecoderForCausalLM", "modernbert-decoder", "Ettin decoders", GATED_TIED, _SLIDES),
    ("NanoChatForCausalLM", "nanochat", "nanochat", PLAIN),
    ("NemotronForCausalLM", "nemotron", "Nemotron 4 and Minitron", PLAIN),
    ("OPTForCausalLM", "opt", "OPT 125M to 66B", PLAIN_TIED, _SGLANG),
    ("Olmo2ForCausalLM", "olmo2", "OLMo 2", GATED, _SGLANG),
    ("Olmo3ForCausalLM", "olmo3", "OLMo 3", GATED, _SLIDES),
    ("OlmoForCausalLM", "olmo", "OLMo 1", GATED, _SGLANG),
    ("OlmoeForCausalLM", "olmoe", "OLMoE", MIXTURE, _SGLANG),
    ("PersimmonForCausalLM", "persimmon", "Persimmon 8B", PLAIN, _SGLANG),
    ("Phi3ForCausalLM", "phi3", "Phi 3, 3.5 and 4, dense", GATED, _SGLANG, _SLIDES),
    ("PhiForCausalLM", "phi", "Phi 1, 1.5 and 2", PLAIN, _SGLANG),
    ("PhimoeForCausalLM", "phimoe", "Phi 3.5 MoE", MIXTURE, _SLIDES),
    ("Qwen2MoeForCausalLM", "qwen2_moe", "Qwen 1.5 and 2, mixture of experts", MIXTURE, _SGLANG),
    ("SmolLM3ForCausalLM", "smollm3", "SmolLM 3", GATED_TIED),
    ("SolarOpenForCausalLM", "solar_open", "Solar Open", MIXTURE),
    ("StableLmForCausalLM", "stablelm", "StableLM 2 and Zephyr", GATED, _SGLANG),
    ("Starcoder2ForCausalLM", "starcoder2", "StarCoder 2", PLAIN_TIED, _SGLANG, _SLIDES),
    ("VaultGemmaForCausalLM", "vaultgemma", "VaultGemma", GEMMA, _SLIDES, _CHANGES_SCORES),
    ("YoutuForCausalLM", "youtu", "Youtu-LLM", LATENT_TIED),
)
SERVED: Mapping[str, ModelFamily] = MappingProxyType(
    {
        name: ModelFamily(
            name=name,
            model_type=model_type,
            models=models,
            names=reader.names,
            experts=reader.experts,
            in_sglang=_SGLANG in marks,
            in_linear_modules=_OWN_PRODUCTS not in marks,
            changes_scores=_CHANGES_SCORES in marks,
            slides=_SLIDES in marks,
        )
        for name, model_type, models, reader, *marks in _ROWS
    }
)
