"""Instructor: classes filled by tools, by schemas and by the Responses API."""

from typing import Annotated

import instructor
import openai
import pytest
from instructor import Mode
from pydantic import BaseModel, Field

MESSAGES = [{"role": "user", "content": "What is the capital of France?"}]
ASKED = {"messages": MESSAGES, "max_tokens": 128, "temperature": 0, "max_retries": 0}


class City(BaseModel):
    city: Annotated[str, Field(max_length=20)]
    country: Annotated[str, Field(max_length=20)]


@pytest.fixture
def plain(base_url, api_key):
    with openai.OpenAI(base_url=base_url, api_key=api_key, max_retries=0) as client:
        yield client


def test_instructor__provider_by_name__fills_the_class(base_url, api_key, model) -> None:
    client = instructor.from_provider(f"openai/{model}", base_url=base_url, api_key=api_key)
    city = client.create(
        messages=[{"role": "user", "content": "What is the capital of France?"}], response_model=City, temperature=0
    )

    assert isinstance(city, City)
    assert city.city == "Paris"


@pytest.mark.parametrize("mode", [Mode.TOOLS, Mode.TOOLS_STRICT, Mode.JSON_SCHEMA, Mode.RESPONSES_TOOLS])
def test_instructor__mode__fills_the_class(plain, model, mode) -> None:
    city = instructor.from_openai(plain, mode=mode).create(model=model, response_model=City, **ASKED)

    assert isinstance(city, City)


def test_instructor__partial__grows_to_the_whole(plain, model) -> None:
    client = instructor.from_openai(plain, mode=Mode.JSON_SCHEMA)
    grown = list(client.create_partial(model=model, response_model=City, **ASKED))

    assert len(grown) > 2
    assert grown[-1].city.startswith(next(city.city for city in grown if city.city))
    assert grown[-1].country


def test_instructor__several__are_read_from_a_stream(plain, model) -> None:
    client = instructor.from_openai(plain, mode=Mode.TOOLS)
    cities = list(client.create_iterable(model=model, response_model=City, **{**ASKED, "max_tokens": 256}))

    assert cities
    assert all(isinstance(city, City) for city in cities)


def test_instructor__answer_refused_by_the_class__model_is_told_why(plain, model) -> None:
    class Twice(City):
        seen: int = 0

        def model_post_init(self, context: object) -> None:
            refused.append(self.city)
            if len(refused) == 1:
                raise ValueError("say it once more")

    refused: list[str] = []
    client = instructor.from_openai(plain, mode=Mode.TOOLS)
    client.create(model=model, response_model=Twice, **{**ASKED, "max_retries": 2})

    assert len(refused) == 2
