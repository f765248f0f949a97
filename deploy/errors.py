"""Errors of composition.

DeployError
├── FleetFileError     the fleet file cannot be used; one line per problem
├── KeyFileError       the file of API keys cannot be used
├── SourceNotFound     a model's checkpoint is not where the fleet file says
├── PortTaken          something else listens on the gateway's port
├── PortRefused        this process cannot listen on the gateway's address
├── FleetStartError    the fleet did not come up
├── FleetChanging      another command is changing the fleet
├── ChangeNotReady     a running fleet took a change, and is not ready with it
├── StopUnanswered     the fleet was stopped without the one who lets streams finish
├── FleetLost          what the fleet runs on has ended
├── FleetEnded         the fleet ended while a command asked it for something
├── OpenCluster        a Ray cluster asks nobody for a token
├── ClusterUnreachable  no Ray cluster answers where one was expected
├── FleetUnreachable   no fleet answers where one was expected
│   └── ControlLoopUnreachable  its gateways answer, its control loop does not
├── RestartNeeded      a change would restart what serves, and nobody allowed it
├── UnitUnknown        the fleet has no such unit
├── PlaceNotFound      the fleet has no such unit or node, or several
├── DrainRefused       the rest of the fleet cannot hold what is to be drained
├── DrainTimedOut      models are still on what is drained
├── ApiServerNotNamed  no Kubernetes API server is known here
├── ApiServerRefused   Kubernetes' API server does not do what it is asked
├── RolloutRefused     a RayService changed in what only another Ray cluster takes over
├── RolloutStuck       a pod's successor does not come, or the fleet does not get whole
├── DemoWeightsUnavailable  the demo's trained weights cannot be had here
├── NotCompiled        modules cannot be compiled on this machine
├── OutputNotWritable  a file that a command shall write cannot be written
└── OptionNotUsable    a command's option has a value that cannot be used
"""

from collections.abc import Mapping, Sequence


class DeployError(Exception):
    """Base of this package's errors. `exit_code` is what the command line ends with."""

    exit_code = 1


class FleetFileError(DeployError):
    """`problems` are whole lines, each with the place, the value and the remedy."""

    exit_code = 2

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = tuple(problems)


class KeyFileError(DeployError):
    exit_code = 2

    def __init__(self, *, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


class SourceNotFound(DeployError):
    exit_code = 2

    def __init__(self, *, model: str, source: str, remedy: str) -> None:
        super().__init__(f"model {model!r}: no checkpoint at {source}: {remedy}")
        self.model = model
        self.source = source
        self.remedy = remedy


class HostMemoryTooSmall(DeployError):
    exit_code = 2

    def __init__(self, *, field: str, value: str, model: str, needed: str) -> None:
        super().__init__(
            f"{field} = {value}: holds the weights of no model (the smallest, {model}, takes {needed}); "
            "raise it, or set 0 and models that leave a unit are read anew"
        )
        self.field = field
        self.value = value
        self.model = model
        self.needed = needed


class PortTaken(DeployError):
    def __init__(self, *, host: str, port: int) -> None:
        super().__init__(f"{host}:{port} is in use by another process; choose another with --port")
        self.host = host
        self.port = port


class PortRefused(DeployError):
    def __init__(self, *, host: str, port: int, reason: str) -> None:
        remedy = "gateway.host must be an IPv4 address of this machine, and ports below 1024 may need more rights"
        super().__init__(f"{host}:{port} cannot be listened on: {reason}; {remedy}")
        self.host = host
        self.port = port
        self.reason = reason


class FleetStartError(DeployError):
    def __init__(self, *, reason: str, remedy: str) -> None:
        super().__init__(f"the fleet did not start: {reason}; {remedy}")
        self.reason = reason
        self.remedy = remedy


class FleetChanging(DeployError):
    def __init__(self, *, name: str, waited_s: float) -> None:
        super().__init__(
            f"nothing was applied: another `muxfleet apply` has been changing the fleet {name!r} for {waited_s:g} s; "
            "try again when it has ended"
        )
        self.name = name
        self.waited_s = waited_s


class ChangeNotReady(DeployError):
    def __init__(self, *, reason: str) -> None:
        super().__init__(
            f"the change was made and the fleet runs, but {reason}; `muxfleet status` shows how far it is and what "
            "fails, another `muxfleet apply` changes it again"
        )
        self.reason = reason


class StopUnanswered(DeployError):
    def __init__(self, *, outlived_by_ray: bool) -> None:
        left = (
            "what it runs stays in the cluster: when it answers again, `serve shutdown` there ends it"
            if outlived_by_ray
            else "streams in flight were cut short; all processes of the fleet have ended"
        )
        super().__init__(f"Serve's controller did not answer at the stop: {left}")
        self.outlived_by_ray = outlived_by_ray


class FleetLost(DeployError):
    def __init__(self, *, part: str, pid: int, meaning: str) -> None:
        super().__init__(
            f"the fleet is lost: {part} (process {pid}) has ended: {meaning}; start the fleet again, "
            "or have `muxfleet up --restart` do it; was memory short? `dmesg` tells"
        )
        self.part = part
        self.pid = pid
        self.meaning = meaning


class FleetEnded(DeployError):
    def __init__(self, *, name: str) -> None:
        super().__init__(
            f"the fleet {name!r} has been stopped, or was lost, before this was done: look whether it runs again, "
            "start it with `muxfleet up` if not, and try again"
        )
        self.name = name


class OpenCluster(DeployError):
    def __init__(self) -> None:
        super().__init__(
            "this Ray cluster asks for no token: whoever reaches its ports runs code in it; start it with "
            "RAY_AUTH_MODE=token, or with MUXFLEET_ALLOW_OPEN_RAY=1 if nobody else reaches them"
        )


class ClusterUnreachable(DeployError):
    def __init__(self, *, address: str, reason: str) -> None:
        super().__init__(
            f"no Ray cluster answers at {address}: {reason}; look whether its head runs there; RAY_ADDRESS is the "
            "host:port of a cluster to join, and without it the fleets of this machine are meant"
        )
        self.address = address
        self.reason = reason


class FleetUnreachable(DeployError):
    _lack = "no fleet answers at"

    def __init__(self, *, address: str, reason: str) -> None:
        super().__init__(f"{self._lack} {address}: {reason}")
        self.address = address
        self.reason = reason


class ControlLoopUnreachable(FleetUnreachable):
    """Requests are served all the same."""

    _lack = "no control loop answers for the fleet at"


class ChatFailed(DeployError):
    def __init__(self, *, model: str, reason: str) -> None:
        super().__init__(f"{model} does not answer: {reason}")
        self.model = model
        self.reason = reason


class FleetNotNamed(DeployError):
    exit_code = 2

    def __init__(self, *, fleets: Sequence[str]) -> None:
        super().__init__(f"--fleet is missing, and several fleets run here: name one of {', '.join(fleets)}")
        self.fleets = tuple(fleets)


class RestartNeeded(DeployError):
    exit_code = 2

    def __init__(self, *, changes: Sequence[str]) -> None:
        super().__init__(f"nothing was applied: it would restart {'; '.join(changes)}; allow it with --restart")
        self.changes = tuple(changes)


class UnitUnknown(DeployError):
    exit_code = 2

    def __init__(self, *, unit: str, known: Sequence[str]) -> None:
        super().__init__(f"the fleet has no unit {unit!r}; it has {', '.join(known) or 'none now'}")
        self.unit = unit
        self.known = tuple(known)


class PlaceNotFound(DeployError):
    exit_code = 2

    def __init__(self, *, asked: str, reason: str) -> None:
        super().__init__(f"no unit or node {asked!r}: {reason}")
        self.asked = asked
        self.reason = reason


class DrainRefused(DeployError):
    """`homeless` maps models to the reason why no other unit holds them."""

    def __init__(self, *, place: str, homeless: Mapping[str, str]) -> None:
        told = "; ".join(f"{model}: {reason}" for model, reason in homeless.items())
        super().__init__(
            f"{place} is not drained: the rest of the fleet cannot hold {told}; add units, remove models or, "
            "if they may go unserved, use --force"
        )
        self.place = place
        self.homeless = homeless


class DrainTimedOut(DeployError):
    def __init__(self, *, place: str, timeout_s: float, left: Sequence[str]) -> None:
        super().__init__(
            f"{place} is not empty after {timeout_s:g} s: {', '.join(left)}; its drain goes on: wait for it with the "
            f"same command, see `muxfleet status`, or end it with `muxfleet uncordon`"
        )
        self.place = place
        self.timeout_s = timeout_s
        self.left = tuple(left)


class ApiServerNotNamed(DeployError):
    exit_code = 2

    def __init__(self) -> None:
        super().__init__(
            "this is no pod with a service account: name an API server with --api-server, for example "
            "http://127.0.0.1:8001 beside `kubectl proxy`"
        )


class ApiServerRefused(DeployError):
    """`status` is HTTP's; 0: nobody answered."""

    def __init__(self, *, asked: str, status: int, reason: str) -> None:
        super().__init__(f"{asked}: {status or 'no answer'}: {reason}")
        self.asked = asked
        self.status = status
        self.reason = reason


class RolloutRefused(DeployError):
    exit_code = 2

    def __init__(self, *, service: str, reason: str) -> None:
        super().__init__(
            f"{service}: {reason}; a running Ray cluster cannot take this over: "
            "install it with upgrade.strategy: NewCluster"
        )
        self.service = service
        self.reason = reason


class RolloutStuck(DeployError):
    def __init__(self, *, service: str, waits_for: str, timeout_s: float) -> None:
        super().__init__(
            f"{service}: stopped after {timeout_s:g} s without a step, waiting for {waits_for}; the other pods serve "
            "on: look into it (`kubectl describe`, `muxfleet status`) and upgrade again"
        )
        self.service = service
        self.waits_for = waits_for
        self.timeout_s = timeout_s


class DemoWeightsUnavailable(DeployError):
    """`remedy` may be empty: where only another network would help."""

    def __init__(self, *, reason: str, remedy: str = "") -> None:
        super().__init__(f"no trained weights: {reason}" + (f"; {remedy}" if remedy else ""))
        self.reason = reason
        self.remedy = remedy


class NotCompiled(DeployError):
    def __init__(self, *, reason: str, remedy: str) -> None:
        super().__init__(f"nothing is compiled, all runs as Python: {reason}; {remedy}")
        self.reason = reason
        self.remedy = remedy


class OutputNotWritable(DeployError):
    exit_code = 2

    def __init__(self, *, path: str, reason: str) -> None:
        super().__init__(f"{path}: cannot be written: {reason}")
        self.path = path
        self.reason = reason


class OptionNotUsable(DeployError):
    exit_code = 2

    def __init__(self, *, option: str, value: object, remedy: str) -> None:
        super().__init__(f"{option} {value}: {remedy}")
        self.option = option
        self.value = value
        self.remedy = remedy
