"""What the tests of files and batches share: lines, and a gateway replica with an SDK that talks to it."""

import asyncio
import json
from pathlib import Path

import httpx
import openai
from served_gateway import ServedGateway

from router.batches.batch_settings import BatchSettings

MODEL = "demo/bytes"
CHAT = "/v1/chat/completions"


def settings(folder: Path, **changes) -> BatchSettings:
    quick = {"url": str(folder), "lease_s": 2.0, "poll_s": 0.1, "flush_s": 0.1, "lines_at_once": 4}
    return BatchSettings(**{**quick, **changes})


def line(number: int, url: str = CHAT, **body) -> dict:
    asked = {"model": MODEL, "max_tokens": 5, "temperature": 0, **body}
    if url == CHAT:
        asked.setdefault("messages", [{"role": "user", "content": f"line {number}"}])
    return {"custom_id": f"request-{number}", "method": "POST", "url": url, "body": asked}


def jsonl(*lines: dict) -> bytes:
    return b"".join(json.dumps(one).encode() + b"\n" for one in lines)


class Replica:
    """A gateway over the folder, and an SDK that talks to it."""

    def __init__(self, served: ServedGateway, sdk: openai.AsyncOpenAI) -> None:
        self.served = served
        self.sdk = sdk

    async def send(self, data: bytes, endpoint: str = CHAT, **extra):
        file = await self.sdk.files.create(file=("asked.jsonl", data), purpose="batch")
        asked = {"input_file_id": file.id, "endpoint": endpoint, "completion_window": "24h", **extra}
        return await self.sdk.batches.create(**asked)

    async def ended(self, batch_id: str):
        async with asyncio.timeout(60):
            while True:
                batch = await self.sdk.batches.retrieve(batch_id)
                if batch.status in ("completed", "failed", "cancelled", "expired"):
                    return batch
                await asyncio.sleep(0.05)

    async def lines_of(self, file_id: str | None) -> list[dict]:
        if file_id is None:
            return []
        text = (await self.sdk.files.content(file_id)).text
        return [json.loads(one) for one in text.splitlines()]


async def eventually_ready(replica: Replica) -> None:
    async with httpx.AsyncClient(base_url=replica.served.url) as http, asyncio.timeout(30):
        while True:
            if (await http.get("/v1/files", headers=replica.sdk.auth_headers)).status_code != 503:
                return
            await asyncio.sleep(0.02)
