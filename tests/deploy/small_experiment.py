"""An experiment of one case: a GPU under two policies, thirty requests."""

from pathlib import Path
from typing import Any

EXAMPLES = Path(__file__).parents[2] / "examples"
SMALL: dict[str, Any] = {
    "name": "small",
    "paper": "none",
    "cases": [
        {
            "name": "one GPU",
            "fleet": {
                "models": [
                    {
                        "id": "m",
                        "source": str(EXAMPLES / "models" / "qwen2.5-1.5b"),
                        "slo": {"ttft_s": 2.0, "tbt_s": 0.05},
                    }
                ],
                "pools": [{"device": "simulated", "gpu_type": "H100", "kv_memory": "8GiB"}],
            },
            "workload": {
                "prompt_tokens": {"mean": 900, "max": 4000},
                "output_tokens": {"mean": 20, "max": 100},
                "requests": 30,
                "quick_requests": 30,
            },
            "systems": [
                {"name": "split", "policy": "static_split", "scheduler": {"static_decode_share": 0.9}},
                {"name": "whole", "policy": "prefill_first"},
            ],
            "rates_per_s": [20],
            "published": [{"metric": "ttft_mean_s", "values": {"split": 2.0, "whole": 1.0}}],
        }
    ],
}
