import json
import socket
import threading
from pathlib import Path

import pytest

from deploy.errors import SourceNotFound
from deploy.fleet_file.model_specs import read_model_spec
from profiler.errors import UnsupportedModel

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "num_hidden_layers": 4,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 512,
}


@pytest.mark.parametrize(
    ("content", "error", "message"),
    [
        (None, SourceNotFound, "cannot be read"),
        ("{", SourceNotFound, "not JSON"),
        ("[]", SourceNotFound, "not a JSON object"),
        ('{"architectures": ["MambaForCausalLM"]}', UnsupportedModel, "MambaForCausalLM"),
        ('{"architectures": ["LlamaForCausalLM"]}', UnsupportedModel, "missing"),
    ],
)
def test_read_model_spec__unusable_config__says_why(
    tmp_path: Path, content: str | None, error: type[Exception], message: str
) -> None:
    if content is not None:
        (tmp_path / "config.json").write_text(content)

    with pytest.raises(error, match=message):
        read_model_spec("m", str(tmp_path), None, None)


def test_read_model_spec__in_the_cache__asks_no_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repository = tmp_path / "models--org--small"
    snapshot = repository / "snapshots" / "0123abc"
    snapshot.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("0123abc")
    (snapshot / "config.json").write_text(json.dumps(CONFIG))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")

    assert read_model_spec("m", "org/small", None, None).num_layers == CONFIG["num_hidden_layers"]


def test_read_model_spec__connection_is_cut__says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else its error, which is none of the library's own, would end the task that asks again."""
    server = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=lambda: server.accept()[0].close(), daemon=True).start()
    url = f"http://127.0.0.1:{server.getsockname()[1]}/{{repo_id}}/{{revision}}/{{filename}}"
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", url)

    with server, pytest.raises(SourceNotFound, match="cannot be fetched"):
        read_model_spec("m", "org/small", None, None)


def test_read_model_spec__not_an_id__says_so() -> None:
    with pytest.raises(SourceNotFound, match="neither a folder"):
        read_model_spec("m", "a/b/c", None, None)
