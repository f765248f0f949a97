"""Brings a fleet up with a line per step on the terminal, and takes it down again."""

import importlib
import os
import resource
import secrets
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any

from rich.console import Console

from deploy.commands.start_screen import StartScreen
from deploy.environment import export_environment, ray_address, ray_auth_token, running_fleets_folder
from deploy.fleet_file.settings import FleetFile
from deploy.local.free_ports import free_ports
from deploy.local.haproxy import program_path, usable_proxy
from deploy.local.ray_environment import notices_environment, ray_environment
from deploy.local.running_fleets import (
    RunningFleet,
    announced,
    process_started_s,
    running_fleets,
    this_boot,
    this_machine,
)
from deploy.local.start_checks import (
    check_cluster_answers,
    check_docstrings,
    check_gpus,
    check_notes_folder,
    check_open_files,
    check_weights,
)
from deploy.local.supervisor import Supervisor, supervised
from deploy.serve.render import logical_cpus, without_node_labels

if TYPE_CHECKING:
    from deploy.serve.serve_fleet import ServeFleet

_PROXY_WORDS: Mapping[str, str] = {"haproxy": " behind HAProxy", "python": " behind Serve's Python proxy"}
STOP_S = 30.0
"""How long Ctrl-C lets streams finish and processes end."""
_END_S = 6.0  # for processes to end, when the last stream has


@contextmanager
def fleet_on_screen(
    fleet: FleetFile, console: Console, *, is_verbose: bool, wait_s: float, stop_s: float = STOP_S
) -> Iterator["ServeFleet"]:
    """Yields the fleet when its models are ready, at most `wait_s` later. On the way out it stops everything it
    started, by force after `stop_s`.

    Raises:
        FleetStartError: it did not come up; what was started is stopped.
        FleetLost: what it runs on has ended.
    """
    address = ray_address()
    is_joining = address is not None
    proxy = usable_proxy(fleet.gateway.proxy)
    namesakes = frozenset[str]()
    if address is not None:
        _prepare_to_join(address, is_verbose=is_verbose)
    else:  # a cluster that is already there has its own environment, which this process was given
        check_docstrings(sys.flags.optimize)
        if proxy == "haproxy":
            check_open_files(resource.getrlimit(resource.RLIMIT_NOFILE)[1])
        check_notes_folder(running_fleets_folder())
        namesakes = tell_of_namesakes(fleet, console)
        check_weights(fleet)
        fleet = without_node_labels(fleet)
        export_environment(
            ray_environment(
                proxy=proxy,
                auth_token=secrets.token_hex(16),
                free_ports=free_ports(3, but=fleet.gateway.port),
                haproxy=program_path(),
                is_verbose=is_verbose,
            )
        )
        check_gpus(fleet, _visible_gpus)
    began_s = time.monotonic()
    supervisor = Supervisor(stop_s=stop_s, tell=lambda line: console.print(line, style="yellow", soft_wrap=True))
    screen = StartScreen(console, began_s, supervisor.now_in)
    with supervised(supervisor):
        supervisor.limit_start(wait_s)
        with screen, _cluster(fleet, screen, supervisor, is_verbose=is_verbose):
            screen.line(f"Ray is up, deploying fleet {fleet.name!r}{'' if is_joining else _PROXY_WORDS[proxy]}")
            supervisor.heed_signals()  # Ray has set a handler of its own meanwhile
            with _deployed(fleet, supervisor, is_joining=is_joining, stop_s=stop_s) as running:
                remaining_s = max(1.0, began_s + wait_s - time.monotonic())
                running.wait_until_ready(
                    on_change=screen.model,
                    deadline_s=remaining_s,
                    on_stage=screen.stage,
                    on_models=screen.note_progress,
                )
                supervisor.now_serving()
                screen.close()
                with noted(fleet, running.url, console, is_joining=is_joining, namesakes=namesakes):
                    yield running
                supervisor.now_ending()
                if supervisor.verdict is None:
                    _last_words(console, "stopping")


def _prepare_to_join(address: str, *, is_verbose: bool) -> None:
    export_environment(notices_environment(is_verbose=is_verbose))
    check_cluster_answers(address)


def tell_of_namesakes(fleet: FleetFile, console: Console, but: frozenset[str] = frozenset()) -> frozenset[str]:
    """Tells of fleets that run here under the same name, and returns their URLs: one file may be started twice, on the
    next free port.
    """
    running = running_fleets(running_fleets_folder())
    urls = [other.url for other in running if other.name == fleet.name and other.url not in but]
    if urls:
        console.print(
            f"a fleet named {fleet.name!r} runs here already ({', '.join(urls)}): `muxfleet apply`, `drain` and "
            "`cordon` cannot tell them apart, and both keep their state in one file unless state.folder differs; stop "
            "one, or give it another name",
            style="yellow",
            soft_wrap=True,
        )
    return frozenset(urls)


@contextmanager
def noted(
    fleet: FleetFile, url: str, console: Console, *, is_joining: bool, namesakes: frozenset[str] = frozenset()
) -> Iterator[None]:
    """`muxfleet apply` finds the fleet by that. A cluster that was there before is found by RAY_ADDRESS. `namesakes`
    were told of at the start; of those that came up since, it is told now.
    """
    if is_joining:
        yield
        return
    from deploy.local.local_ray import cluster_address

    found = RunningFleet(
        name=fleet.name,
        url=url,
        address=cluster_address(),
        auth_token=ray_auth_token(),
        pid=os.getpid(),
        boot=this_boot(),
        started_s=process_started_s(),
        machine=this_machine(),
    )
    folder = running_fleets_folder()
    with ExitStack() as notes:
        try:
            notes.enter_context(announced(folder, found))
        except OSError as error:  # what was loaded may have filled the disk since it was checked
            console.print(
                f"`muxfleet apply`, `drain` and `cordon` will not find this fleet: {folder} cannot be written: "
                f"{error.strerror}; make room there before its next start",
                style="yellow",
                soft_wrap=True,
            )
        tell_of_namesakes(fleet, console, but=namesakes | {url})
        yield


def serve_until_interrupted(console: Console, running: "ServeFleet", fleet: FleetFile) -> None:
    """Returns on Ctrl-C, SIGTERM or SIGHUP, and when the fleet is lost, which `fleet_on_screen` then raises."""
    try:  # who reads these lines may stop it at once
        console.print(f"\nserving at {running.url} (Ctrl-C stops)\n")
        console.print(curl_line(running.url, fleet.models[0].id), soft_wrap=True)
        console.print(f"muxfleet chat {running.url}", soft_wrap=True)
        while True:
            time.sleep(3600)
    except KeyboardInterrupt:
        _last_words(console, "")


def _last_words(console: Console, line: str) -> None:
    with suppress(OSError):  # the terminal may be closed: that is how some fleets are stopped
        console.print(line)


def curl_line(url: str, model: str) -> str:
    body = f'{{"model": "{model}", "messages": [{{"role": "user", "content": "Hello"}}], "max_tokens": 32}}'
    return f"curl {url}/v1/chat/completions -H 'content-type: application/json' -d '{body}'"


def _visible_gpus() -> int:
    from deploy.local.local_ray import visible_gpus  # after the environment is set, as above

    return visible_gpus()


def _cluster(
    fleet: FleetFile, screen: StartScreen, supervisor: Supervisor, *, is_verbose: bool
) -> AbstractContextManager[Any]:
    from deploy.local.local_ray import joined_ray, local_ray  # after the environment is set, as above

    _import_beside("deploy.serve.serve_fleet")
    address = ray_address()
    if address is not None:
        screen.announce(f"joining the Ray cluster at {address}")
        return joined_ray(address, is_verbose=is_verbose)
    screen.announce("starting Ray on this machine")
    return local_ray(num_cpus=logical_cpus(fleet), is_verbose=is_verbose, supervisor=supervisor)


def _deployed(
    fleet: FleetFile, supervisor: Supervisor, *, is_joining: bool, stop_s: float
) -> AbstractContextManager["ServeFleet"]:
    from deploy.serve.serve_fleet import serve_fleet  # after the environment is set, as above

    return serve_fleet(
        fleet,
        outlived_by_ray=is_joining,
        is_lost=lambda: supervisor.is_lost,
        finish_s=max(stop_s - _END_S, stop_s / 2),
    )


def _import_beside(module: str) -> None:
    """Begins an import while Ray starts. Whoever imports the module next waits for it, and is told what it raises."""

    def run() -> None:
        with suppress(Exception):
            importlib.import_module(module)

    threading.Thread(target=run, name=f"import-{module}", daemon=True).start()
