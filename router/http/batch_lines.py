"""Lines of batches, answered as the endpoints answer requests."""

from collections.abc import Mapping
from typing import TypeVar

from router.batches.line_runner import AskLine
from router.errors import InvalidRequest
from router.http.generation_endpoint import ForGeneration
from router.http.responding import ready
from router.openai.body import SMALL_BODY_BYTES, parse_body
from router.openai.chat import ChatCompletionRequest
from router.openai.completions import CompletionRequest
from router.openai.embeddings import EmbeddingsRequest
from router.openai.parameters import GenerationParameters
from router.openai.rerank import RerankRequest
from router.openai.score import ScoreRequest
from router.request_terms import Caller
from router.responses.asked_response import AskedResponse
from router.responses.response_store import ResponseStore
from router.serving.embeddings import embedding_prompts
from router.serving.gateway import Gateway
from router.serving.reranking import rerank_prompts
from router.serving.scoring import score_prompts

ParametersT = TypeVar("ParametersT", bound=GenerationParameters)


def line_endpoints(gateway: Gateway) -> Mapping[str, AskLine]:
    """Returns, by path, what batches can be of."""

    async def chat(body: bytes, caller: Caller, owner: str) -> bytes:
        request = await _parsed(gateway, body, ChatCompletionRequest)
        _check(gateway, request, owner)
        return await (await gateway.chat(request, caller)).document()

    async def complete(body: bytes, caller: Caller, owner: str) -> bytes:
        request = await _parsed(gateway, body, CompletionRequest)
        _check(gateway, request, owner)
        return await (await gateway.complete(request, caller)).document()

    async def answer_response(body: bytes, caller: Caller, owner: str) -> bytes:
        asked = AskedResponse.parse(body)
        _check(gateway, asked, owner)
        if asked.body.background:
            raise InvalidRequest("A batch is in the background as it is: leave 'background' out.", param="background")
        store = ResponseStore()  # no line goes on from another
        response = await ready(asked, caller, store, may_ask_priority=False)
        return await (await response.answer(gateway, store)).document()

    async def embed(body: bytes, caller: Caller, owner: str) -> bytes:
        asked = EmbeddingsRequest.parse(body)
        gateway.access.check_owner(owner, asked.model)
        return await (await gateway.pooled(embedding_prompts, asked, caller)).document()

    async def rerank(body: bytes, caller: Caller, owner: str) -> bytes:
        asked = RerankRequest.parse(body)
        gateway.access.check_owner(owner, asked.model)
        return await (await gateway.pooled(rerank_prompts, asked, caller)).document()

    async def score(body: bytes, caller: Caller, owner: str) -> bytes:
        asked = ScoreRequest.parse(body)
        gateway.access.check_owner(owner, asked.model)
        return await (await gateway.pooled(score_prompts, asked, caller)).document()

    return {
        "/v1/chat/completions": chat,
        "/v1/completions": complete,
        "/v1/embeddings": embed,
        "/v1/rerank": rerank,
        "/v1/responses": answer_response,
        "/v1/score": score,
    }


async def _parsed(gateway: Gateway, body: bytes, schema: type[ParametersT]) -> ParametersT:
    if len(body) <= SMALL_BODY_BYTES:
        return parse_body(body, schema)
    async with gateway.large_bodies:
        return parse_body(body, schema)


def _check(gateway: Gateway, asked: ForGeneration, owner: str) -> None:
    if asked.streams:
        raise InvalidRequest("A line of a batch has one answer: leave 'stream' out.", param="stream")
    gateway.access.check_owner(owner, asked.model)
