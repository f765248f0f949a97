"""Routes that answer with tokens, and generate none."""

from functools import partial

from fastapi import FastAPI
from starlette.requests import Request

from router.http.generation_endpoint import parsed
from router.openai.body import parse_body
from router.openai.document import body_of, responses_of
from router.openai.foreign_body import decoded
from router.openai.tokenize_requests import DetokenizeBody, Detokenized, Tokenized, TokenizeRequest
from router.serving.gateway import Gateway


def add_tokenize_routes(app: FastAPI, gateway: Gateway) -> None:
    @app.post("/tokenize", openapi_extra=body_of(TokenizeRequest), **responses_of(Tokenized, streams=False))
    async def tokenize(request: Request) -> Tokenized:
        who = gateway.access.identify(request.headers)
        asked = await parsed(request, gateway, partial(parse_body, schema=TokenizeRequest))
        gateway.access.enter(who, asked.model)
        return await gateway.tokenize(asked)

    @app.post("/detokenize", openapi_extra=body_of(DetokenizeBody), **responses_of(Detokenized, streams=False))
    async def detokenize(request: Request) -> Detokenized:
        who = gateway.access.identify(request.headers)
        asked = await parsed(request, gateway, partial(decoded, kind=DetokenizeBody))
        gateway.access.enter(who, asked.model)
        return await gateway.detokenize(asked)
