"""Answers POST /v1/embeddings: one request's outputs as one document."""

from base64 import b64encode
from contextlib import aclosing

import msgspec
import numpy as np

from router.errors import GenerationFailed
from router.openai.embeddings import EmbeddingsRequest
from router.serving.response import IndexedOutputs
from router.telemetry.service_report import ServiceReport

_encode = msgspec.json.Encoder().encode


class EmbeddingsResponse:
    """One request's embeddings as one document. Each is encoded when it comes: all at once would hold up others."""

    def __init__(
        self,
        outputs: IndexedOutputs,
        request: EmbeddingsRequest,
        *,
        prompt_tokens: int,
        report: ServiceReport,
    ) -> None:
        self.report = report
        self._outputs = outputs
        self._request = request
        self._prompt_tokens = prompt_tokens

    async def document(self) -> bytes:
        """Raises what its generations raise, and InvalidRequest: they have fewer dimensions than were asked for."""
        model = self._request.model
        entries = [b""] * len(self._request.inputs)
        async with aclosing(self._outputs) as outputs:
            async for index, output in outputs:
                if output.embedding:
                    entries[index] = self._entry(index, output.embedding)
                elif output.finish is not None and not entries[index]:
                    raise GenerationFailed(model=model, reason="the unit is of a version without embeddings")
        usage = {"prompt_tokens": self._prompt_tokens, "total_tokens": self._prompt_tokens}
        after = _encode({"model": model, "usage": usage})
        return b'{"object":"list","data":[' + b",".join(entries) + b"]," + after[1:]

    def _entry(self, index: int, embedding: bytes) -> bytes:
        values = np.frombuffer(embedding, dtype="<f4").astype(np.float64)
        self._request.check_size(len(values))
        values = values[: self._request.dimensions]
        values /= max(float(np.linalg.norm(values)), np.finfo(np.float64).tiny)
        told = b64encode(values.astype("<f4").tobytes()).decode() if self._request.as_base64 else values.tolist()
        return _encode({"object": "embedding", "index": index, "embedding": told})
