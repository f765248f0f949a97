"""`muxfleet bench`: a trace that is missing, and an interruption, after which what had ended is shown."""

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from deploy.cli import main
from deploy.commands import bench as bench_module
from deploy.inspection.served_models import ServedModel
from traces.outcome import Ending, RequestOutcome

TRACE = "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(f"2024-05-10 00:00:0{i},10,3\n" for i in range(5))


def outcome(index: int) -> RequestOutcome:
    return RequestOutcome(
        index=index,
        model="a",
        ending=Ending.FINISHED,
        scheduled_s=float(index),
        sent_s=float(index),
        end_s=index + 0.5,
        ttft_s=0.3,
        gaps_s=(0.1, 0.1),
        input_tokens=10,
        requested_tokens=3,
        output_tokens=3,
    )


@pytest.mark.parametrize("ended", [(), (1, 0)])
def test_bench__interrupted__keeps_what_had_ended(
    ended: tuple[int, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: Any, on_outcome: Any, **__: Any) -> list[RequestOutcome]:
        for index in ended:
            on_outcome(outcome(index))
        raise KeyboardInterrupt

    model = ServedModel(id="a", status=None, max_model_len=None, slo=None)
    monkeypatch.setattr(bench_module, "served_models", lambda *_, **__: [model])
    monkeypatch.setattr(bench_module, "replay_with_progress", interrupted)
    (tmp_path / "trace.csv").write_text(TRACE)
    files = ["--json", str(tmp_path / "run.json"), "--out", str(tmp_path / "rows.parquet")]

    with pytest.raises(SystemExit) as stopped:
        main(["bench", "http://me:secret@127.0.0.1:9", "--trace", str(tmp_path / "trace.csv"), *files])

    out, err = capsys.readouterr()
    assert (stopped.value.code, err) == (130, "")
    if not ended:
        assert not (tmp_path / "run.json").exists()
        return
    found = json.loads((tmp_path / "run.json").read_text())
    assert "interrupted: 2 of 5 requests had ended" in out
    assert (found["total"]["requests"], found["total"]["finished"], found["not_ended"]) == (2, 2, 3)
    assert pq.read_schema(tmp_path / "rows.parquet").metadata[b"url"] == b"http://...@127.0.0.1:9"


def test_bench__trace_is_missing__says_so_without_a_fleet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["bench", "http://127.0.0.1:9", "--trace", str(tmp_path / "trace.csv")])

    assert stopped.value.code == 2
    assert f"{tmp_path / 'trace.csv'}: No such file or directory" in capsys.readouterr().err
