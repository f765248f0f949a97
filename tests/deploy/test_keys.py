import json
import os
import stat
import subprocess
import sys
import threading
import time
from datetime import datetime
from pathlib import Path

import pytest
from rich.console import Console

from deploy.cli import main
from deploy.commands import keys as keys_command
from deploy.environment import bearer_headers
from deploy.errors import KeyFileError, OptionNotUsable
from deploy.fleet_file.key_file import KeyFile, parse_key_file, read_key_file, sole_writer, write_key_file
from router.errors import InvalidApiKey


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    return int(ended.value.code or 0)


def test_keys__new_list_revoke__file_follows_and_holds_no_secret(tmp_path, capsys) -> None:
    file = tmp_path / "keys.yaml"
    assert run("keys", "new", "team-a", "--file", str(file), "--model", "m", "--requests-per-minute", "7") == 0
    secret = capsys.readouterr().out.strip()
    assert run("keys", "new", "ops", "--file", str(file), "--admin", "--priority", "high", "--tighten-slo") == 0
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
    assert [k["tighten_slo"] for k in listed] == [False, True]
    assert [e.may_tighten_slo for e in (key.entry() for key in read_key_file(file).keys)] == [False, True]
    assert "hash" not in listed[0]

    assert run("keys", "revoke", listed[0]["id"], "--file", str(file)) == 0
    with pytest.raises(InvalidApiKey):
        read_key_file(file).ring().admit(secret)
    assert run("keys", "revoke", "000000000000", "--file", str(file)) == 2
    capsys.readouterr()
    assert run("keys", "new", "bad name!", "--file", str(file)) == 2
    assert capsys.readouterr().err.startswith("muxfleet: NAME 'bad name!': must be at most 63 letters, digits")
    assert run("keys", "new", "a", "--model", "", "--file", str(file)) == 2
    assert capsys.readouterr().err.startswith("muxfleet: --model '': must be letters, digits and")
    assert run("keys", "list", "--file", str(tmp_path / "none.yaml")) == 2


def test_keys_list__narrow_terminal__cuts_no_id_and_no_name(tmp_path, capsys, monkeypatch) -> None:
    file = tmp_path / "keys.yaml"
    assert run("keys", "new", "team-of-research", "--file", str(file), "--model", "qwen-small", "--expires", "90d") == 0
    monkeypatch.setattr(keys_command, "terminal", lambda: Console(width=80))
    capsys.readouterr()

    assert run("keys", "list", "--file", str(file)) == 0
    (key,) = read_key_file(file).keys
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert [line.split()[:2] for line in lines if line.startswith(key.id)] == [[key.id, key.name]] * 2


def test_keys_new__with_an_expiry__is_refused_from_then_on_and_listed_as_expired(tmp_path, capsys, monkeypatch) -> None:
    file = tmp_path / "keys.yaml"
    assert run("keys", "new", "guest", "--file", str(file), "--expires", "90d") == 0
    secret = capsys.readouterr().out.strip()
    ring = read_key_file(file).ring()
    entry = ring.admit(secret)
    assert entry.expires_s == pytest.approx(time.time() + 90 * 86400, abs=60)

    now_s = time.time
    monkeypatch.setattr(time, "time", lambda: now_s() + 90 * 86400 + 60)
    with pytest.raises(InvalidApiKey, match="has expired"):
        ring.admit(secret)
    with pytest.raises(InvalidApiKey, match="has expired"):
        ring.of(entry.key_id)
    with pytest.raises(InvalidApiKey, match="Incorrect"):  # who does not hold it is not told
        ring.admit(secret[:-1] + ("A" if secret[-1] != "A" else "B"))

    file.write_text(file.read_text().replace("expires: ", "expires: 2020-01-31 #"))
    monkeypatch.setenv("COLUMNS", "200")
    assert run("keys", "list", "--file", str(file)) == 0
    assert "2020-01-31 00:00 UTC (expired)" in capsys.readouterr().out
    assert run("keys", "new", "x", "--file", str(file), "--expires", "soon") == 2
    assert capsys.readouterr().err.startswith("muxfleet: --expires soon: write a time")


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("2027-01-31", "2027-01-31T00:00:00+00:00"),
        ("2027-01-31T18:00:00Z", "2027-01-31T18:00:00+00:00"),
        ("2027-01-31 18:00:00+02:00", "2027-01-31T16:00:00+00:00"),
        ("'2027-01-31'", "2027-01-31T00:00:00+00:00"),
    ],
)
def test_key_file__expiry_as_people_write_it__is_read(written: str, meant: str) -> None:
    text = f"keys: [{{id: 0123456789ab, name: a, hash: 'sha256:{'0' * 64}', expires: {written}}}]"
    (key,) = parse_key_file(text, name="k.yaml").keys

    assert key.entry().expires_s == datetime.fromisoformat(meant).timestamp()
    assert parse_key_file(KeyFile(keys=(key,)).to_yaml(), name="k.yaml").keys == (key,)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("keys: [", "k.yaml:1: not valid YAML"),
        ("keys: 5", "k.yaml:1: keys: must be a list"),
        ("keys:\n- {id: x}", "k.yaml:2: keys[0].id: must be the 12 hexadecimal digits"),
        ("keys:\n- {id: 123456789012}", "k.yaml:2: keys[0].id: must be a string (put it in quotes)"),
        ("other: 1", "k.yaml:1: other: unknown key"),
        ("- a", "k.yaml:1: the file: must be a mapping"),
        ("keys: []\nkeys: []", "k.yaml:2: keys: the key appears twice"),
        ("[" * 5000, "k.yaml: nested too deeply"),
        ("keys: [{id: 0123456789ab, name: a, hash: 'mxf_secret'}]", "k.yaml:1: keys[0].hash: "),
        (
            f"keys: [{{id: 0123456789ab, name: a, hash: 'sha256:{'0' * 64}', expires: soon}}]",
            "k.yaml:1: keys[0].expires: must be a day or a time such",
        ),
    ],
)
def test_key_file__broken__one_line_names_the_place_and_not_the_value(text: str, place: str) -> None:
    with pytest.raises(KeyFileError) as raised:
        parse_key_file(text, name="k.yaml")

    assert place in str(raised.value)
    assert "mxf_secret" not in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("text", ["", "# nothing yet\n"])
def test_key_file__without_content__has_no_keys(text: str) -> None:
    assert parse_key_file(text, name="k.yaml").keys == ()


@pytest.mark.parametrize(("path", "reason"), [("/dev/zero", "larger than"), ("/", "cannot be read: Is a directory")])
def test_read_key_file__no_file_of_keys__says_so_and_ends(path: str, reason: str) -> None:
    with pytest.raises(KeyFileError, match=reason):
        read_key_file(Path(path))


@pytest.mark.parametrize("key", ["schlüssel", "two\nlines"])
def test_api_key__no_header_can_carry_it__is_refused_unshown(monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    monkeypatch.setenv("MUXFLEET_API_KEY", key)

    with pytest.raises(OptionNotUsable, match="MUXFLEET_API_KEY") as refused:
        bearer_headers()

    assert key not in str(refused.value)


def test_keys_new__two_at_once__no_key_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second begins when the first has read the file and not yet written it."""
    file = tmp_path / "keys.yaml"
    begun: list[threading.Thread] = []

    def write_late(path: Path, keys: KeyFile) -> None:
        if not begun:
            begun.append(threading.Thread(target=run, args=("keys", "new", "second", "--file", str(path))))
            begun[0].start()
            begun[0].join(timeout=0.5)  # it must not get ready meanwhile, and does where nothing holds it
        write_key_file(path, keys)

    monkeypatch.setattr("deploy.commands.keys.write_key_file", write_late)
    assert run("keys", "new", "first", "--file", str(file)) == 0
    begun[0].join(timeout=30)

    assert {key.name for key in read_key_file(file).keys} == {"first", "second"}


def test_keys_new__another_changes_the_file_for_long__is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "keys.yaml"
    monkeypatch.setattr("deploy.fleet_file.key_file._LOCKED_S", 0.01)

    with sole_writer(file):
        assert run("keys", "new", "a", "--file", str(file)) == 2

    assert "another command has been changing it" in capsys.readouterr().err


def test_keys__file_is_a_link__change_what_it_leads_to(tmp_path: Path) -> None:
    """The gateway reads that: a link that became a file of its own hid a new key from it, and a revocation."""
    file, link = tmp_path / "shared.yaml", tmp_path / "keys.yaml"
    link.symlink_to(file)

    assert run("keys", "new", "first", "--file", str(link)) == 0  # the link leads nowhere yet
    assert run("keys", "new", "second", "--file", str(link)) == 0
    first, second = read_key_file(file).keys
    assert run("keys", "revoke", first.id, "--file", str(link)) == 0

    assert link.is_symlink()
    assert read_key_file(file).keys == (second,)


@pytest.mark.parametrize("goes_to", ["full disk", "nobody"])
def test_keys_new__cannot_show_the_key__none_is_left_in_the_file(tmp_path: Path, goes_to: str) -> None:
    """It would be one that nobody knows, and that nobody would ever revoke."""
    file = tmp_path / "keys.yaml"
    assert run("keys", "new", "kept", "--file", str(file)) == 0
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "muxfleet.command_line", "keys", "new", "lost", "--file", str(file)]
    with Path("/dev/full").open("w") as full, os.fdopen(writing, "w") as closed:
        stdout = full if goes_to == "full disk" else closed
        ended = subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, text=True, timeout=120, check=False)

    assert ended.returncode != 0
    assert [key.name for key in read_key_file(file).keys] == ["kept"]
    if goes_to == "full disk":
        assert "its output cannot be written: No space left on device" in ended.stderr


def test_keys_new__standard_output_is_closed__no_key_is_made(tmp_path: Path) -> None:
    file = tmp_path / "keys.yaml"
    command = [sys.executable, "-m", "muxfleet.command_line", "keys", "new", "lost", "--file", str(file)]
    ended = subprocess.run(["sh", "-c", '"$@" >&-', "sh", *command], capture_output=True, text=True, timeout=120)

    assert (ended.returncode, file.exists()) == (2, False)
    assert ended.stderr == (
        "muxfleet: standard output: cannot be written: it is closed, and the key is shown nowhere else\n"
    )
