"""Saves what a profiling run has found."""

from pathlib import Path

from deploy.errors import OutputNotWritable
from profiler.profile import Profile
from profiler.profile_file import write_profile


def save_profile(profile: Profile, out: Path) -> None:
    """Raises OutputNotWritable."""
    try:
        write_profile(profile, out)
    except OSError as error:
        raise OutputNotWritable(path=str(out), reason=error.strerror or str(error)) from error
