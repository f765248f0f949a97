"""A checkpoint's folder as sentence-transformers writes those that judge documents by a decoder's logits."""

import json
from pathlib import Path
from typing import Any

TEMPLATE = (
    "{{ messages | selectattr('role', 'eq', 'system') | map(attribute='content') | first | default('Judge') }}|"
    "{{ messages | selectattr('role', 'eq', 'query') | map(attribute='content') | first }}|"
    "{{ messages | selectattr('role', 'eq', 'document') | map(attribute='content') | first }}|"
    "{% if add_generation_prompt %}?{% endif %}"
)


def declare_reranker(
    folder: Path,
    *,
    true_token: int,
    false_token: int | None,
    whole: dict[str, Any] | None = None,
    add_generation_prompt: bool | None = None,
) -> Path:
    """`whole` is config_sentence_transformers.json; None: there is none."""
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    modules = [
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.base.modules.transformer.Transformer"},
        {"idx": 1, "name": "1", "path": "1_LogitScore",
         "type": "sentence_transformers.cross_encoder.modules.logit_score.LogitScore"},
    ]  # fmt: skip
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_LogitScore").mkdir(exist_ok=True)
    head = {"true_token_id": true_token, "false_token_id": false_token}
    (folder / "1_LogitScore" / "config.json").write_text(json.dumps(head))
    if whole is not None:
        (folder / "config_sentence_transformers.json").write_text(json.dumps(whole))
    if add_generation_prompt is not None:
        arguments = {"chat_template": {"add_generation_prompt": add_generation_prompt}}
        transformer = {"transformer_task": "text-generation", "processing_kwargs": arguments}
        (folder / "sentence_bert_config.json").write_text(json.dumps(transformer))
    return folder
