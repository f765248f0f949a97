"""Gives a prompt to the prefill engine of a unit that has the fewest tokens to compute before its first token."""

from router.routing.prefix_index import PrefixIndex, prefix_names


class PrefillChoice:
    """Counts, for each engine, prompt tokens without KV of the requests it has, and of the new one those that its
    prefix cache does not hold: Dynamo's KV-aware routing and SGLang's cache-aware router, in one unit.
    """

    def __init__(self, num_engines: int) -> None:
        self._prefixes = PrefixIndex()
        self._ahead = [0] * num_engines
        self._of_request: dict[str, tuple[int, int]] = {}  # engine, tokens to compute

    def choose(self, request_id: str, model: str, prompt: tuple[int, ...]) -> int:
        """Returns the engine, which has the request from now on."""
        engine, tokens = 0, len(prompt)
        if len(self._ahead) > 1:
            names = prefix_names(model, prompt)
            matched = self._prefixes.matched_tokens(names, model=model, conversation="", tokens=tokens)
            fresh = [tokens - matched.get(str(e), 0) for e in range(len(self._ahead))]
            engine = min(range(len(self._ahead)), key=lambda e: (self._ahead[e] + fresh[e], e))
            tokens = fresh[engine]
            self._prefixes.record(names, str(engine), model=model, conversation="", tokens=len(prompt))
        self._ahead[engine] += tokens
        self._of_request[request_id] = engine, tokens
        return engine

    def least_ahead(self) -> int:
        return min(self._ahead)

    def done(self, request_id: str) -> None:
        """Its first token is there."""
        engine, tokens = self._of_request.pop(request_id)
        self._ahead[engine] -= tokens
