"""Predicted against measured launches of a profile. Needs the extra `plots`."""

from collections.abc import Mapping
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from deploy.errors import OutputNotWritable
from profiler.profile import PHASES, Profile

_MARKERS: Mapping[str, str] = {"prefill": "o", "decode": "s", "mixed": "^"}


def plot_profile(profile: Profile, path: Path) -> None:
    """One panel per latency model; held-out launches are filled. Raises OutputNotWritable."""
    latencies = profile.latency_models(with_held_out=False)
    figure, panels = plt.subplots(1, len(latencies), figsize=(4.5 * len(latencies), 4.5), sharex=True, sharey=True)
    for panel, (name, latency) in zip(panels, latencies.items(), strict=True):
        for phase, color in zip(PHASES, ("tab:blue", "tab:orange", "tab:green"), strict=True):
            for is_held_out in (False, True):
                rows = [
                    (m.seconds, latency.mixed_s(model.spec, m.launch.chunks, m.launch.contexts, m.launch.sms))
                    for model in profile.models.values()
                    for m in model.measurements
                    if m.beside is None and m.launch.phase == phase and m.is_held_out == is_held_out
                ]
                if rows:
                    measured_s, predicted_s = zip(*rows, strict=True)
                    panel.scatter(
                        measured_s,
                        predicted_s,
                        s=18,
                        marker=_MARKERS[phase],
                        edgecolors=color,
                        facecolors=color if is_held_out else "none",
                        label=f"{phase}, held out" if is_held_out else phase,
                    )
        panel.axline((1e-3, 1e-3), (1e-2, 1e-2), color="black", linewidth=0.8)
        panel.set(xscale="log", yscale="log", title=name, xlabel="measured, s")
    panels[0].set_ylabel("predicted, s")
    panels[0].legend(fontsize="small")
    figure.tight_layout()
    try:
        figure.savefig(path)
    except (OSError, ValueError) as error:
        raise OutputNotWritable(path=str(path), reason=str(error)) from error
    finally:
        plt.close(figure)
