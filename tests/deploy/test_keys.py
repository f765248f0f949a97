import json
import stat

import pytest

from deploy.cli import main
from deploy.errors import KeyFileError
from deploy.key_file import parse_key_file, read_key_file
from router.errors import InvalidApiKey


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    return int(ended.value.code or 0)


def test_keys__new_list_revoke__file_follows_and_holds_no_secret(tmp_path, capsys) -> None:
    file = tmp_path / "keys.yaml"
    assert run("keys", "new", "team-a", "--file", str(file), "--model", "m", "--requests-per-minute", "7") == 0
    secret = capsys.readouterr().out.strip()
    assert run("keys", "new", "ops", "--file", str(file), "--admin", "--priority", "high") == 0
    capsys.readouterr()

    # The secret part may itself hold "_": only the first two are separators.
    _, _, key = secret.split("_", 2)
    assert len(key) > 20
    assert key not in file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    entry = read_key_file(file).ring().admit(secret)
    assert (entry.name, entry.models, entry.requests_per_minute) == ("team-a", frozenset({"m"}), 7)

    assert run("keys", "list", "--file", str(file), "--json", str(tmp_path / "keys.json")) == 0
    listed = json.loads((tmp_path / "keys.json").read_text())["keys"]
    assert [(k["name"], k["admin"]) for k in listed] == [("team-a", False), ("ops", True)]
    assert "hash" not in listed[0]

    assert run("keys", "revoke", listed[0]["id"], "--file", str(file)) == 0
    with pytest.raises(InvalidApiKey):
        read_key_file(file).ring().admit(secret)
    assert run("keys", "revoke", "000000000000", "--file", str(file)) == 2
    assert run("keys", "new", "bad name!", "--file", str(file)) == 2
    assert run("keys", "list", "--file", str(tmp_path / "none.yaml")) == 2


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("keys: [", "not YAML"),
        ("keys: 5", "keys"),
        ("keys: [{id: x}]", "keys.0"),
        ("other: 1", "other"),
        ("keys: [{id: 0123456789ab, name: a, hash: 'mxf_secret'}]", "keys.0.hash"),
    ],
)
def test_key_file__broken__one_line_names_the_place_and_not_the_value(text: str, place: str) -> None:
    with pytest.raises(KeyFileError) as raised:
        parse_key_file(text, name="k.yaml")

    assert place in str(raised.value)
    assert "mxf_secret" not in str(raised.value)
    assert "\n" not in str(raised.value)
