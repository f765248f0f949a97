"""A checkpoint in the CPU executor, with what compiles forms of outputs for its tokens."""

from pathlib import Path

from tokenizers import Tokenizer

from pdmux_actor.executor.structured_output import FormCompiler
from pdmux_actor.executor.torch_cpu import TorchCpuExecutor
from pdmux_actor.model_info import ModelInfo, ModelSource
from pdmux_actor.serving.detokenizer import TokenBytes

BLOCK_BYTES = 8192


class ConstrainedModel:
    def __init__(self, folder: Path, dtype: str, *, pool_bytes: int = 512 << 20, max_model_len: int = 2048) -> None:
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.executor = TorchCpuExecutor(kv_pool_bytes=pool_bytes, block_bytes=BLOCK_BYTES, default_dtype=dtype)
        self.info: ModelInfo = self.executor.load_model(
            ModelSource(model="m", source=str(folder), max_model_len=max_model_len)
        )

    def new_compiler(self) -> FormCompiler:
        """One that has compiled nothing yet."""
        tokens, vocab_size = TokenBytes(self.tokenizer), self.info.spec.vocab_size
        texts = [tokens.of(i) if tokens.has_text(i) else b"" for i in range(vocab_size)]
        return FormCompiler(texts, self.info.eos_token_ids, vocab_size=vocab_size)

    def close(self) -> None:
        self.executor.close()
