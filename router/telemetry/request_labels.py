"""The values that labels of the request count take: paths and statuses are enumerated, whatever clients send."""

from router import errors
from router.error_bodies import INTERNAL, SHAPES

GENERATION_ENDPOINTS = frozenset(
    {
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/embeddings",
        "/v1/messages",
        "/v1/rerank",
        "/v1/responses",
        "/v1/score",
    }
)
ENDPOINTS = GENERATION_ENDPOINTS | {
    "/v1/batches",
    "/v1/files",
    "/v1/messages/count_tokens",
    "/v1/responses/input_tokens",
    "/tokenize",
    "/detokenize",
    "/v1/models",
    "/health",
    "/ready",
    "/metrics",
    "/version",
}
OTHER = "other"
# Cohere's SDK asks the one, clients of llama.cpp and vLLM the other.
ALSO_RERANK = ("/v2/rerank", "/rerank")
ALSO_SCORE = "/score"  # vLLM's
CLIENT_CLOSED = 499

_BEFORE_THE_MODEL_IS_READ = frozenset(
    {
        errors.BodyTooLarge,
        errors.HeadersTooLarge,
        errors.InvalidApiKey,
        errors.MethodNotAllowed,
        errors.RequestTimeout,
        errors.UnsupportedMediaType,
    }
)
_NO_ERROR_OF_OURS = frozenset({200, CLIENT_CLOSED, INTERNAL.status})
STATUSES = _NO_ERROR_OF_OURS | {shape.status for shape in SHAPES.values()}
STATUSES_OF_MODELS = _NO_ERROR_OF_OURS | {
    shape.status for error, shape in SHAPES.items() if error not in _BEFORE_THE_MODEL_IS_READ
}
