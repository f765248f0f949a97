"""Messages for chat templates that refuse roles in another order: Qwen 3.5's takes one system message, at the start,
Mistral's has user and assistant take turns. Agents send several of both: instructions, `developer`, what they know.
"""

from collections.abc import Mapping, Sequence
from itertools import groupby, takewhile
from typing import Any

Message = Mapping[str, Any]


def with_one_system_message(messages: Sequence[Message]) -> list[Message]:
    """Makes one of those that the messages begin with. Later ones stay in their places, as the user's: so the prompt
    begins as that of the turn before, whose KV is cached.
    """
    first = list(takewhile(lambda message: message["role"] == "system", messages))
    later = [{**m, "role": "user"} if m["role"] == "system" else m for m in messages[len(first) :]]
    return [*_joined(first), *later]


def with_turns(messages: Sequence[Message]) -> list[Message]:
    """Makes one of messages of the user's that follow each other."""
    told: list[Message] = []
    for role, turn in groupby(messages, key=lambda message: message["role"]):
        of_role = [*turn]
        told += _joined(of_role) if role == "user" else of_role
    return told


def _joined(messages: Sequence[Message]) -> Sequence[Message]:
    if len(messages) < 2:
        return messages
    return [{**messages[0], "content": "\n\n".join(message["content"] for message in messages)}]
