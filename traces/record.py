"""One request of a trace, as data."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceRecord:
    """A request that was, or will be, sent.

    `prefix_block_hashes` are ids of consecutive blocks of the prompt: two requests that share their first k ids share
    the first k blocks of their prompts. The tokens per block belong to the trace, not to the request.
    """

    arrival_s: float
    input_tokens: int
    output_tokens: int
    model: str | None = None
    session_id: str | None = None
    prefix_block_hashes: tuple[int, ...] = ()

    def at(self, arrival_s: float, model: str | None) -> "TraceRecord":
        """Returns the same request at another time, to another model. Written out: `dataclasses.replace` takes three
        times as long, and simulations move every row of a trace.
        """
        return TraceRecord(
            arrival_s=arrival_s,
            input_tokens=self.input_tokens,
            output_tokens=self.output_tokens,
            model=model,
            session_id=self.session_id,
            prefix_block_hashes=self.prefix_block_hashes,
        )
