"""Architectures of transformers' causal language models that the own engine does not serve, and why."""

from collections.abc import Mapping
from types import MappingProxyType

from profiler.families.config_readers import DENSE_OR_MIXTURE
from profiler.families.entry import ModelFamily

_ALIBI = "it adds ALiBi to the scores of attention"
_OWN = "its attention does not go through transformers' AttentionInterface"
_TWICE = "a layer attends twice"
_SHARED = "layers read the keys and values of other layers"
_CHUNKS = "it attends within chunks"
_SPARSE = "it chooses the keys of each token (sparse attention)"
_BIAS = "it adds a bias of positions to the scores of attention"
_HEADS = "its layers differ in their KV heads"
_LOOP = "its layers run more than once for a token"
_UNTESTED = "its config.json is laid out in a way that plans cannot read"
_STATE = "it keeps a state between tokens beside keys and values (state space, convolution, linear attention)"
_MODALITY = "it reads or writes more than text"
_ENCODER = "it is an encoder, or a decoder that needs one"
_ASSISTANT = "it drafts for another model"

_ROWS = (
    ("AXK2ForCausalLM", "axk2", "A.X K2", _SPARSE, False),
    ("BailingHybridForCausalLM", "bailing_hybrid", "Ling and Ring, hybrid", _STATE, False),
    ("BambaForCausalLM", "bamba", "Bamba", _STATE, False),
    ("BartForCausalLM", "bart", "Bart", _ENCODER, False),
    ("BertGenerationDecoder", "bert-generation", "BertGenerationDecoder", _ENCODER, False),
    ("BertLMHeadModel", "bert", "Bert", _ENCODER, False),
    ("BigBirdForCausalLM", "big_bird", "BigBird", _ENCODER, False),
    ("BigBirdPegasusForCausalLM", "bigbird_pegasus", "BigBirdPegasus", _ENCODER, False),
    ("BlenderbotForCausalLM", "blenderbot", "Blenderbot", _ENCODER, False),
    ("BlenderbotSmallForCausalLM", "blenderbot-small", "BlenderbotSmall", _ENCODER, False),
    ("BloomForCausalLM", "bloom", "BLOOM", _ALIBI, False),
    ("BltForCausalLM", "blt", "Byte Latent Transformer", _MODALITY, False),
    ("CTRLLMHeadModel", "ctrl", "CTRL", _OWN, False),
    ("CamembertForCausalLM", "camembert", "Camembert", _ENCODER, False),
    ("CodeGenForCausalLM", "codegen", "CodeGen", _OWN, False),
    ("CohereCompassForCausalLM", "cohere_compass_text", "CohereCompass", _MODALITY, False),
    ("CpmAntForCausalLM", "cpmant", "CPM-Ant", _OWN, False),
    ("Data2VecTextForCausalLM", "data2vec-text", "Data2VecText", _ENCODER, False),
    ("DbrxForCausalLM", "dbrx", "DBRX", _UNTESTED, True),
    ("DeepseekV32ForCausalLM", "deepseek_v32", "DeepSeek V3.2", _SPARSE, True),
    ("DeepseekV4ForCausalLM", "deepseek_v4", "DeepSeek V4", _SPARSE, True),
    ("DiffLlamaForCausalLM", "diffllama", "DiffLlama", _TWICE, False),
    ("DogeForCausalLM", "doge", "Doge", _SPARSE, False),
    ("Dots3NoteForCausalLM", "dots3_note", "dots3", _SPARSE, True),
    ("ElectraForCausalLM", "electra", "Electra", _ENCODER, False),
    ("Emu3ForCausalLM", "emu3", "Emu3", _MODALITY, False),
    ("ErnieForCausalLM", "ernie", "Ernie", _ENCODER, False),
    ("FalconForCausalLM", "falcon", "Falcon 1", _ALIBI, False),
    ("FalconH1ForCausalLM", "falcon_h1", "Falcon H1", _STATE, True),
    ("FalconMambaForCausalLM", "falcon_mamba", "Falcon Mamba", _STATE, True),
    ("FuyuForCausalLM", "fuyu", "Fuyu", _MODALITY, False),
    ("GPTJForCausalLM", "gptj", "GPT-J", _OWN, True),
    ("GPTNeoForCausalLM", "gpt_neo", "GPT-Neo", _OWN, False),
    ("GPTNeoXJapaneseForCausalLM", "gpt_neox_japanese", "GPT-NeoX Japanese", _OWN, False),
    ("Gemma3ForConditionalGeneration", "gemma3", "Gemma3", _MODALITY, True),
    ("Gemma3nForCausalLM", "gemma3n_text", "Gemma 3n", _SHARED, True),
    ("Gemma3nForConditionalGeneration", "gemma3n", "Gemma3n", _MODALITY, True),
    ("Gemma4AssistantForCausalLM", "gemma4_assistant", "Gemma4Assistant", _ASSISTANT, True),
    ("Gemma4ForCausalLM", "gemma4_text", "Gemma 4", _SHARED, True),
    ("Gemma4ForConditionalGeneration", "gemma4", "Gemma4", _MODALITY, True),
    ("Gemma4UnifiedAssistantForCausalLM", "gemma4_unified_assistant", "Gemma4UnifiedAssistant", _ASSISTANT, True),
    ("Gemma4UnifiedForCausalLM", "gemma4_unified_text", "Gemma 4, unified", _SHARED, False),
    ("Gemma4UnifiedForConditionalGeneration", "gemma4_unified", "Gemma4Unified", _MODALITY, True),
    ("GitForCausalLM", "git", "Git", _MODALITY, False),
    ("Glm4MoeLiteForCausalLM", "glm4_moe_lite", "GLM-4.7 Flash", _UNTESTED, True),
    ("GlmMoeDsaForCausalLM", "glm_moe_dsa", "GLM-5", _SPARSE, True),
    ("GotOcr2ForConditionalGeneration", "got_ocr2", "GotOcr2", _MODALITY, False),
    ("GraniteMoeHybridForCausalLM", "granitemoehybrid", "Granite 4, hybrid", _STATE, True),
    ("HYV4ForCausalLM", "hy_v4", "Hunyuan 4", _SPARSE, True),
    ("HrmTextForCausalLM", "hrm_text", "HRM", _LOOP, True),
    ("Inkling2ForCausalLM", "inkling2_text", "Inkling 2", _BIAS, False),
    ("InklingForCausalLM", "inkling_text", "Inkling", _BIAS, False),
    ("JambaForCausalLM", "jamba", "Jamba", _STATE, False),
    ("JetMoeForCausalLM", "jetmoe", "JetMoE", _HEADS, False),
    ("KimiLinearForCausalLM", "kimi_linear", "Kimi Linear", _STATE, True),
    ("Lfm2ForCausalLM", "lfm2", "LFM2", _STATE, True),
    ("Lfm2MoeForCausalLM", "lfm2_moe", "LFM2, mixture of experts", _STATE, True),
    ("Lfm3ForCausalLM", "lfm3", "LFM3", _STATE, False),
    ("Llama4ForCausalLM", "llama4_text", "Llama 4, text", _CHUNKS, True),
    ("LongcatFlashForCausalLM", "longcat_flash", "LongCat Flash", _TWICE, True),
    ("MBartForCausalLM", "mbart", "MBart", _ENCODER, False),
    ("Mamba2ForCausalLM", "mamba2", "Mamba 2", _STATE, True),
    ("MambaForCausalLM", "mamba", "Mamba", _STATE, True),
    ("MarianForCausalLM", "marian", "Marian", _ENCODER, False),
    ("MegatronBertForCausalLM", "megatron-bert", "MegatronBert", _ENCODER, False),
    ("MiMoV2FlashForCausalLM", "mimo_v2_flash", "MiMo V2 Flash", _HEADS, True),
    ("MiniMaxForCausalLM", "minimax", "MiniMax Text 01", _STATE, False),
    ("MiniMaxM3VLForCausalLM", "minimax_m3_vl_text", "MiniMax M3", _SPARSE, False),
    ("MllamaForCausalLM", "mllama", "Mllama", _MODALITY, False),
    ("MoshiForCausalLM", "moshi", "Moshi", _MODALITY, False),
    (
        "MossTranscribeDiarizeForConditionalGeneration",
        "moss_transcribe_diarize",
        "MossTranscribeDiarize",
        _MODALITY,
        False,
    ),
    ("MptForCausalLM", "mpt", "MPT", _ALIBI, False),
    ("MusicgenForCausalLM", "musicgen", "Musicgen", _MODALITY, False),
    ("MusicgenMelodyForCausalLM", "musicgen_melody", "MusicgenMelody", _MODALITY, False),
    ("MvpForCausalLM", "mvp", "Mvp", _ENCODER, False),
    ("NemotronHForCausalLM", "nemotron_h", "Nemotron H", _STATE, True),
    ("OlmoHybridForCausalLM", "olmo_hybrid", "OLMo Hybrid", _STATE, False),
    ("OpenAIGPTLMHeadModel", "openai-gpt", "GPT 1", _OWN, False),
    ("PLBartForCausalLM", "plbart", "PLBart", _ENCODER, False),
    ("PegasusForCausalLM", "pegasus", "Pegasus", _ENCODER, False),
    ("Phi4MultimodalForCausalLM", "phi4_multimodal", "Phi4Multimodal", _MODALITY, False),
    ("ProphetNetForCausalLM", "prophetnet", "ProphetNet", _ENCODER, False),
    ("Qwen3NextForCausalLM", "qwen3_next", "Qwen 3 Next", _STATE, True),
    ("Qwen3_5ForCausalLM", "qwen3_5_text", "Qwen 3.5", _STATE, True),
    ("Qwen3_5MoeForCausalLM", "qwen3_5_moe_text", "Qwen 3.5, mixture of experts", _STATE, True),
    ("Qwen4ExpForCausalLM", "qwen4_exp_text", "Qwen 4, experimental", _STATE, False),
    ("RecurrentGemmaForCausalLM", "recurrent_gemma", "RecurrentGemma", _STATE, False),
    ("ReformerModelWithLMHead", "reformer", "Reformer", _OWN, False),
    ("RemBertForCausalLM", "rembert", "RemBert", _ENCODER, False),
    ("RoCBertForCausalLM", "roc_bert", "RoCBert", _ENCODER, False),
    ("RoFormerForCausalLM", "roformer", "RoFormer", _ENCODER, False),
    ("RobertaForCausalLM", "roberta", "Roberta", _ENCODER, False),
    ("RobertaPreLayerNormForCausalLM", "roberta-prelayernorm", "RobertaPreLayerNorm", _ENCODER, False),
    ("RwkvForCausalLM", "rwkv", "RWKV 4", _STATE, False),
    ("TrOCRForCausalLM", "trocr", "TrOCR", _MODALITY, False),
    ("WhisperForCausalLM", "whisper", "Whisper", _MODALITY, False),
    ("XGLMForCausalLM", "xglm", "XGLM", _OWN, False),
    ("XLMRobertaForCausalLM", "xlm-roberta", "XLMRoberta", _ENCODER, False),
    ("XLMRobertaXLForCausalLM", "xlm-roberta-xl", "XLMRobertaXL", _ENCODER, False),
    ("XLMWithLMHeadModel", "xlm", "XLM", _OWN, False),
    ("XLNetLMHeadModel", "xlnet", "XLNet", _OWN, False),
    ("XmodForCausalLM", "xmod", "Xmod", _ENCODER, False),
    ("Zamba2ForCausalLM", "zamba2", "Zamba 2", _STATE, False),
    ("ZambaForCausalLM", "zamba", "Zamba", _STATE, False),
    ("ZayaForCausalLM", "zaya", "Zaya", _STATE, True),
    ("xLSTMForCausalLM", "xlstm", "xLSTM", _STATE, False),
)
# Of these no plan can be made: memory and time of a step do not follow from heads and layers.
_NOT_PLANNED = frozenset({_STATE, _MODALITY, _ENCODER, _ASSISTANT, _LOOP, _UNTESTED})
REFUSED: Mapping[str, ModelFamily] = MappingProxyType(
    {
        name: ModelFamily(
            name=name,
            model_type=model_type,
            models=models,
            names=DENSE_OR_MIXTURE.names,
            experts=DENSE_OR_MIXTURE.experts,
            refusal=reason,
            is_planned=reason not in _NOT_PLANNED,
            in_sglang=in_sglang,
        )
        for name, model_type, models, reason, in_sglang in _ROWS
    }
)
