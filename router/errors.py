"""Errors that a client of the gateway can meet; `router/error_bodies.py` maps them to HTTP.

RouterError
├── InvalidRequest           the request breaks the API's rules; `param` names where
│   ├── ContextLengthExceeded  prompt and completion do not fit the model
│   └── UnsupportedParameter   a parameter that would change the output and is not implemented
├── BodyTooLarge
├── UnsupportedMediaType
├── PathNotFound
├── MethodNotAllowed
├── ModelNotFound            the fleet does not offer this model
├── ResponseNotFound         no gateway keeps such a response, or item of one
│   └── PreviousResponseNotFound  to go on from
├── ConversationNotFound     no gateway keeps such a conversation, or it has no such item
├── GatewaysSilent           other gateways, which may keep the response, do not answer
├── UnitNotFound             the fleet has no such unit
├── FileNotKept              no such file is kept for this API key
├── BatchNotFound            no such batch is kept for this API key
├── BatchesUnavailable       the place where files and batches are kept cannot be used
├── UnitSilent               the unit does not answer the control loop
├── ControlLoopSilent        the control loop does not answer the gateway
├── InvalidApiKey            keys are in force, and this is none of them
├── ModelNotAllowed          the API key is not for this model
├── AdminOnly                the API key is not for operators
├── RateLimited              the API key has used up its rate
├── HeadersTooLarge
├── RequestTimeout           the client sends its body too slowly
├── Overloaded               the model's queue is full
├── ModelUnavailable         no unit serves the model within the time a request may wait
├── GatewayNotReady          no model is routable, the control loop has not told yet which there are, or it ends
├── TokenizerUnavailable     the gateway cannot load the model's tokenizer, or lost the process that works on text
├── GenerationFailed         the engine gave the request up
├── WeightsChanged           no unit has the weights any more that an answer was prepared for, or begun by
├── GatewayFault             a bug of ours; the gateway's log has its traceback
├── UnitsLost                every unit that was tried died under the request
└── RequestKilledUnits       units died under the request, before they gave it a token
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal


class RouterError(Exception):
    """Base of this package's errors. `param` and `retry_after_s` go to the client."""

    def __init__(
        self, message: str, *, param: str | None = None, code: str | None = None, retry_after_s: int | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code
        self.retry_after_s = retry_after_s


class InvalidRequest(RouterError):
    pass


class ContextLengthExceeded(InvalidRequest):
    def __init__(self, *, max_model_len: int, prompt_tokens: int, max_tokens: int | None, param: str) -> None:
        asked = f"you requested {prompt_tokens + (max_tokens or 0)} tokens ({prompt_tokens} in the {param}"
        asked += f", {max_tokens} in the completion)" if max_tokens is not None else ")"
        remedy = f"reduce the length of the {param}" + (" or completion" if max_tokens is not None else "")
        super().__init__(
            f"This model's maximum context length is {max_model_len} tokens. However, {asked}. Please {remedy}.",
            param=param,
        )
        self.max_model_len = max_model_len
        self.prompt_tokens = prompt_tokens
        self.max_tokens = max_tokens


class UnsupportedParameter(InvalidRequest):
    pass


class ThreadsUnsupported(InvalidRequest):
    """Anthropic's SDK then sends the whole conversation with every turn."""

    def __init__(self) -> None:
        super().__init__("'thread' is not implemented: send the whole conversation as 'messages'.", param="thread")


class BodyTooLarge(RouterError):
    def __init__(self, *, limit_bytes: int, remedy: str = "send a shorter prompt") -> None:
        super().__init__(f"The request body exceeds {limit_bytes} bytes; {remedy}.")
        self.limit_bytes = limit_bytes


class UnsupportedMediaType(RouterError):
    def __init__(self, *, header: str, got: str, wanted: str) -> None:
        super().__init__(f"{header} {got[:100]!r} is not supported; {wanted}.")
        self.header = header


class PathNotFound(RouterError):
    def __init__(self, *, method: str, path: str, meant: str | None) -> None:
        hint = "The API is listed at /openapi.json." if meant is None else f"Did you mean {meant}?"
        super().__init__(f"Unknown request URL: {method} {path[:200]}. {hint}")
        self.path = path


class MethodNotAllowed(RouterError):
    def __init__(self, *, method: str, path: str, allow: str) -> None:
        super().__init__(f"Not allowed to {method} on {path[:200]} (HINT: use {allow}).")
        self.allow = allow


class ModelNotFound(RouterError):
    def __init__(self, *, model: str) -> None:
        super().__init__(
            f"The model {model[:200]!r} does not exist; GET /v1/models lists what is served.", param="model"
        )
        self.model = model


class InvalidApiKey(RouterError):
    def __init__(self, reason: Literal["missing", "wrong", "expired"]) -> None:
        super().__init__(
            {
                "missing": "You didn't provide an API key; send it as 'Authorization: Bearer KEY'.",
                "wrong": "Incorrect API key provided.",
                "expired": "This API key has expired; ask the operator for a new one (muxfleet keys new).",
            }[reason],
            code="invalid_api_key",
        )


class ModelNotAllowed(RouterError):
    def __init__(self, *, model: str) -> None:
        super().__init__(
            f"This API key is not for model {model[:200]!r}; GET /v1/models lists what it is for.", param="model"
        )
        self.model = model


class AdminOnly(RouterError):
    def __init__(self) -> None:
        super().__init__("This API key is not for operators; use one made with `muxfleet keys new --admin`.")


class RateLimited(RouterError):
    def __init__(self, *, key: str, retry_after_s: int, headers: Mapping[str, str]) -> None:
        super().__init__(
            f"The rate limit of API key {key!r} is reached; retry in {retry_after_s} s.", retry_after_s=retry_after_s
        )
        self.key = key
        self.headers = headers


class HeadersTooLarge(RouterError):
    def __init__(self, *, limit_bytes: int) -> None:
        super().__init__(f"The request's headers exceed {limit_bytes} bytes; send fewer or shorter ones.")
        self.limit_bytes = limit_bytes


class RequestTimeout(RouterError):
    def __init__(self, *, limit_s: float) -> None:
        super().__init__(f"The request's body did not arrive within {limit_s:.0f} s.")
        self.limit_s = limit_s


class Overloaded(RouterError):
    def __init__(self, *, model: str, retry_after_s: int) -> None:
        super().__init__(
            f"The queue of model {model!r} is full; retry in {retry_after_s} s or slow down.",
            retry_after_s=retry_after_s,
        )
        self.model = model


class ModelUnavailable(RouterError):
    """`code` is `model_loading` while a unit loads the model, `no_capacity` otherwise. `progress` says in words how far
    it is, `headers` in figures.
    """

    def __init__(
        self,
        *,
        model: str,
        loading: bool,
        waited_s: float,
        retry_after_s: int,
        progress: str = "",
        headers: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        state = "is loading" if loading else "has no unit that serves it now"
        known = f"{progress}; " if progress else ""
        super().__init__(
            f"The model {model!r} {state} ({known}waited {waited_s:.0f} s); retry in {retry_after_s} s.",
            code="model_loading" if loading else "no_capacity",
            retry_after_s=retry_after_s,
        )
        self.model = model
        self.loading = loading
        self.headers = headers


class ModelLoadFailed(RouterError):
    """No unit has the model ready or is about to: it has failed to load, and a wait would be in vain."""

    def __init__(self, *, model: str, reason: str, retry_after_s: int) -> None:
        reason = reason.removeprefix(f"model {model!r} does not load: ")  # as a unit's error begins
        super().__init__(
            f"The model {model!r} does not load: {reason.rstrip('.')}. `muxfleet status` tells its state, the logs of "
            f"units the rest; once that is mended, retry in {retry_after_s} s.",
            code="model_load_failed",
            retry_after_s=retry_after_s,
        )
        self.model = model
        self.reason = reason


class ResponseNotFound(RouterError):
    """`kept_id` is that of a response, or of an item of one. `param` says who wants it: "input" of a request, or the
    path's "response_id".
    """

    def __init__(self, *, kept_id: str, param: str) -> None:
        what = "item" if param == "input" else "response"
        is_read = param == "response_id"
        codes = {"input": "item_not_found", "response_id": "response_not_found"}
        super().__init__(
            f"No {what} {kept_id[:100]!r} is kept: gateways keep their latest responses, in memory, but for "
            "those with 'store' false." + ("" if is_read else " Send the whole conversation as 'input' instead."),
            param=param,
            code=codes.get(param),
        )
        self.kept_id = kept_id


class PreviousResponseNotFound(ResponseNotFound):
    """A request is at fault, as with OpenAI: whose clients look for a 400 and send the whole conversation."""

    def __init__(self, *, kept_id: str) -> None:
        super().__init__(kept_id=kept_id, param="previous_response_id")


class ConversationNotFound(RouterError):
    """`param` says who wants it: "conversation" of a request, or the path's "conversation_id" or "item_id"."""

    def __init__(self, *, kept_id: str, param: str) -> None:
        if param == "item_id":
            message, code = f"The conversation has no item {kept_id[:100]!r}.", "item_not_found"
        else:
            message = f"No conversation {kept_id[:100]!r} is kept: gateways keep their latest ones, in memory."
            code = "conversation_not_found"
        super().__init__(message, param=param, code=code)
        self.kept_id = kept_id


class GatewaysSilent(RouterError):
    def __init__(self, *, response_id: str, retry_after_s: int) -> None:
        super().__init__(
            f"{response_id[:100]!r} is not kept here, and other gateways do not answer now; "
            f"retry in {retry_after_s} s, or send the whole conversation as 'input'.",
            param="previous_response_id" if response_id.startswith("resp") else "input",
            retry_after_s=retry_after_s,
        )
        self.response_id = response_id


class FileNotKept(RouterError):
    def __init__(self, *, file_id: str) -> None:
        super().__init__(
            f"No such File object: {file_id[:100]}; GET /v1/files lists those of this API key.", param="id"
        )
        self.file_id = file_id


class BatchNotFound(RouterError):
    def __init__(self, *, batch_id: str) -> None:
        super().__init__(f"No such batch: {batch_id[:100]}; GET /v1/batches lists those of this API key.", param="id")
        self.batch_id = batch_id


class BatchesUnavailable(RouterError):
    def __init__(self, *, reason: str, retry_after_s: int) -> None:
        super().__init__(
            f"Files and batches cannot be kept now: {reason[:200]}. Their place is the setting gateway.batches.folder.",
            retry_after_s=retry_after_s,
        )
        self.reason = reason


class UnitNotFound(RouterError):
    def __init__(self, *, unit: str) -> None:
        super().__init__(f"The fleet has no unit {unit[:100]!r}; /metrics lists them.", code="unit_not_found")
        self.unit = unit


class UnitSilent(RouterError):
    def __init__(self, *, unit: str, retry_after_s: int) -> None:
        super().__init__(
            f"Unit {unit!r} does not answer now; retry in {retry_after_s} s.",
            code="unit_silent",
            retry_after_s=retry_after_s,
        )
        self.unit = unit


class ControlLoopSilent(RouterError):
    def __init__(self, *, retry_after_s: int) -> None:
        super().__init__(
            f"The control loop does not answer now (requests are served all the same); retry in {retry_after_s} s.",
            code="control_loop_silent",
            retry_after_s=retry_after_s,
        )


class PlannerBusy(RouterError):
    def __init__(self, *, retry_after_s: int) -> None:
        super().__init__(
            f"The planner works on another question, or did not answer in time; retry in {retry_after_s} s.",
            code="planner_busy",
            retry_after_s=retry_after_s,
        )


class TooManyFollowers(RouterError):
    def __init__(self, *, limit: int, retry_after_s: int) -> None:
        super().__init__(
            f"{limit} consoles follow this gateway already; close one, or retry in {retry_after_s} s.",
            code="too_many_consoles",
            retry_after_s=retry_after_s,
        )


class GatewayNotReady(RouterError):
    def __init__(self, *, knows_fleet: bool, retry_after_s: int, ends: bool = False) -> None:
        reason = "No model is routable yet" if knows_fleet else "This gateway is new and does not know the fleet yet"
        if ends:
            reason = "This gateway ends, and its requests with it"
        super().__init__(f"{reason}; retry in {retry_after_s} s.", code="no_capacity", retry_after_s=retry_after_s)
        self.knows_fleet = knows_fleet


class TokenizerUnavailable(RouterError):
    def __init__(self, *, model: str, reason: str, retry_after_s: int) -> None:
        super().__init__(
            f"The gateway has no tokenizer of model {model!r}: it does not load, and the gateway's log tells "
            f"why. It is tried again; ask again in {retry_after_s} s, or another model of /v1/models.",
            code="tokenizer_unavailable",
            retry_after_s=retry_after_s,
        )
        self.model = model
        self.reason = reason


class GenerationFailed(RouterError):
    def __init__(self, *, model: str, reason: str) -> None:
        super().__init__(f"The engine failed this request to model {model!r}: {reason}", code="generation_failed")
        self.model = model
        self.reason = reason


class GatewayFault(RouterError):
    """Stands for an exception that is none of these: what it says is for the log, not for clients."""

    def __init__(self, *, request_id: str) -> None:
        super().__init__(f"The gateway failed on this request; report it with request id {request_id}.")


class UnitsLost(RouterError):
    def __init__(self, *, model: str, attempts: int, retry_after_s: int) -> None:
        super().__init__(
            f"Lost the unit that served model {model!r} {attempts} times; retry in {retry_after_s} s.",
            code="unit_lost",
            retry_after_s=retry_after_s,
        )
        self.model = model
        self.attempts = attempts


class WeightsChanged(RouterError):
    """`has_begun`: one that has not is prepared for the other weights, and no client hears of it."""

    def __init__(self, *, model: str, has_begun: bool, retry_after_s: int) -> None:
        super().__init__(
            f"The model {model!r} was given other weights before this answer had ended, and does not end what it began "
            f"with others; retry in {retry_after_s} s for an answer by the new ones.",
            retry_after_s=retry_after_s,
        )
        self.model = model
        self.has_begun = has_begun


class RequestKilledUnits(RouterError):
    def __init__(self, *, model: str, units: int) -> None:
        super().__init__(
            f"{units} units died under this request to model {model!r}, one after the other: it is tried on no other. "
            "Do not send it again as it is; the logs of the units tell their operator why.",
            code="request_killed_units",
        )
        self.model = model
        self.units = units
