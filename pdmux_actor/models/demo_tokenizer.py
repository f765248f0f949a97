"""A small byte-level tokenizer for random checkpoints: the same one every time, and it round-trips any UTF-8."""

from pathlib import Path

from tokenizers import AddedToken, Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer

END_OF_TEXT = "<|endoftext|>"
TURN_START = "<|im_start|>"
TURN_END = "<|im_end|>"
SPECIAL_TOKENS = (END_OF_TEXT, TURN_START, TURN_END)

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)

_TEXT = """
A fleet of machines answers many people at once. Each question is read in one go, and each answer is written word by
word: reading wants arithmetic, writing wants memory. When both share one device without care, a long question makes
every answer stutter. So the device is split: some of its cores read, the others write, and the border moves with the
load. Several models live together, because few of them are busy at the same time; what one does not use, another takes.
The quick brown fox jumps over the lazy dog while the rain in Spain stays mainly in the plain. There is no place like
home, and nothing ventured is nothing gained. Once upon a time there was a small town by the sea, where people knew one
another by name, and where the ships came in with the morning tide. The children would run down to the harbour to see
what they had brought: cloth and copper, oranges, letters from the other side of the world, and stories without end.
How does a language model work? It predicts the next token from the tokens before it, over and over, until it is done.
What should I cook for dinner? You could try a simple soup with onions, carrots, beans and bread. Thank you very much!
import numpy as np
def mean(values): return sum(values) / len(values)
for index in range(10): print(index, 0.5 * index)
One, two, three, four, five, six, seven, eight, nine, ten, eleven, twelve; 2024, 1999, 100 %, 3.14, 42.
"""


SHAPE_ONLY_VOCABULARY = 512
"""Ids of the tokenizer that stands in for that of a folder that holds a config.json only."""


MOST_DEMO_IDS = 700
"""That `build_demo_tokenizer` makes; a model may have more, as those have whose vocabulary is padded."""


def is_shape_only(folder: Path) -> bool:
    """A config.json and neither weights nor a tokenizer: enough to plan and to simulate with."""
    beside = ("tokenizer*", "*.safetensors", "vocab.*")
    return (folder / "config.json").is_file() and not any(next(folder.glob(p), None) for p in beside)


def build_demo_tokenizer(vocab_size: int) -> Tokenizer:
    """`vocab_size` ids: special tokens, bytes, then merges learned from a short text (which yields up to about 710)."""
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer.decoder = ByteLevelDecoder()
    trainer = BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=1,
        show_progress=False,
        special_tokens=[AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS],
        initial_alphabet=sorted(ByteLevel.alphabet()),
    )
    tokenizer.train_from_iterator(_TEXT.splitlines(), trainer)
    assert tokenizer.get_vocab_size() == vocab_size, "the embedded text yields 259 to about 710 tokens"
    return tokenizer
