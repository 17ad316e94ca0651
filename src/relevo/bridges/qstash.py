"""QStash, a queue that belongs to others: published to through its own SDK."""

from __future__ import annotations

import asyncio
import re
from datetime import timedelta
from typing import Any

from relevo.errors import ProviderRefused, ProviderUnavailable

SECONDS = 15
_A_WHILE = timedelta(hours=1)


class QStash:
    """An account at QStash, or at any server that speaks its API."""

    def __init__(self, token: str, url: str = "https://qstash.upstash.io") -> None:
        from qstash import AsyncQStash

        # Its own retries are off: a job has attempts of its own, and they are counted.
        self._client = AsyncQStash(token, retry=False, base_url=url)

    async def close(self) -> None:
        http: Any = self._client.http
        await http._client.aclose()

    async def publish(self, url: str, body: bytes, *, deduplication: str, retries: int = 3) -> str:
        """Publish JSON to an address and answer with the message's id.

        The same `deduplication` within ten minutes is the same message, so that a publish whose
        answer was lost may be repeated.
        """
        from qstash.errors import (
            DailyMessageLimitExceededError,
            QStashError,
            RateLimitExceededError,
        )

        try:
            async with asyncio.timeout(SECONDS):
                answer: Any = await self._client.message.publish(
                    url=url,
                    body=body,
                    content_type="application/json",
                    retries=retries,
                    deduplication_id=deduplication,
                )
        except DailyMessageLimitExceededError as error:
            raise ProviderUnavailable(
                "QStash: the day's messages are spent", retry_after=_A_WHILE, spends=False
            ) from error
        except RateLimitExceededError as error:
            raise ProviderUnavailable("QStash asks for a pause") from error
        except QStashError as error:
            status = _status(str(error))
            if 400 <= status < 500 and status not in (408, 425):
                raise ProviderRefused(f"QStash answered {status}") from error
            raise ProviderUnavailable(f"QStash answered {status or 'nothing known'}") from error
        except Exception as error:
            # Whatever its HTTP client raises; publishing again is safe in any case.
            raise ProviderUnavailable(f"QStash did not answer: {type(error).__name__}") from error
        return str(answer.message_id)


def _status(said: str) -> int:
    """The SDK tells the status in words only."""
    match = re.match(r"Request failed with status: (\d{3})", said)
    return int(match[1]) if match else 0
