"""Stripe: one PaymentIntent for each reservation, confirmed once.

An intent can be paid once, whatever happens around it: so the intent is made and written down
first, and only then confirmed. After a decline it is confirmed again under a new key, since Stripe
repeats its answer to the old one; after a time-out under the same.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import stripe

from relevo import (
    ErrorRow,
    ProviderError,
    ProviderRefused,
    ProviderUnavailable,
    ProviderUncertain,
    judge_client_error,
)
from relevo.apps.outside import Outside, provider_error

SECONDS = 10.0
VERSION = "2026-10-28.endive"


@dataclass(frozen=True, slots=True)
class Payment:
    """How far an intent has come."""

    intent: str
    status: str
    amount: int
    currency: str
    client_secret: str

    @property
    def is_paid(self) -> bool:
        return self.status == "succeeded"

    @property
    def is_under_way(self) -> bool:
        """It waits for the customer's bank, and a webhook will tell how it ended."""
        return self.status in ("requires_action", "processing", "requires_capture")


class Declined(ProviderRefused):
    """The bank said no. Another card, or another day, may work."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class Busy(ProviderUnavailable):
    """Another payment of the same reservation is being made right now."""


class Payments:
    """One Stripe account."""

    def __init__(self, key: str, base: str) -> None:
        self._transport = _Transport(Outside("Stripe", base, seconds=SECONDS))
        self._client = stripe.StripeClient(
            key,
            stripe_version=VERSION,
            base_addresses={"api": base},
            # Under one idempotency key a repetition is safe, and heals most lost answers at once.
            max_network_retries=2,
            http_client=self._transport,
        )

    async def close(self) -> None:
        await self._transport.close_async()

    async def intend(self, code: str, amount: int, currency: str) -> Payment:
        """The reservation's intent; the same one however often it is asked for."""
        wish: Any = {
            "amount": amount,
            "currency": currency,
            "automatic_payment_methods": {"enabled": True, "allow_redirects": "never"},
            "metadata": {"reservation_code": code},
        }
        create = self._client.v1.payment_intents.create_async
        return await _said(create(wish, options={"idempotency_key": f"intent:{code}"}))

    async def confirm(self, intent: str, payment_method: str, code: str, attempt: int) -> Payment:
        """Charge; Declined, Busy, or a provider's error if that is not known to have worked."""
        confirm = self._client.v1.payment_intents.confirm_async
        try:
            return await _said(
                confirm(
                    intent,
                    {"payment_method": payment_method},
                    options={"idempotency_key": f"pay:{code}:{attempt}"},
                )
            )
        except _Moved:
            return await self._look(intent, acts=True)

    async def refund(self, intent: str, key: str) -> str:
        """Give all money of an intent back, once for a key; the number of the refund."""
        create = self._client.v1.refunds.create_async
        wish: Any = {"payment_intent": intent}
        try:
            found = await _answered(create(wish, options={"idempotency_key": key}))
        except _GivenBack:
            return "given back before"
        if str(found.status) in ("failed", "canceled"):
            raise ProviderRefused(f"Stripe could not give {intent} back: {found.status}")
        return str(found.id)

    async def look(self, intent: str) -> Payment:
        """How an intent stands."""
        return await self._look(intent, acts=False)

    async def _look(self, intent: str, *, acts: bool) -> Payment:
        return await _said(self._client.v1.payment_intents.retrieve_async(intent), acts=acts)


class _GivenBack(ProviderError):
    """The intent's money was given back before, by hand."""


class _Moved(ProviderError):
    """The intent is past being confirmed: paid, perhaps."""


_ROWS = (
    # Our own client raised it, and knows whether the request was begun.
    ErrorRow(
        "stripe.APIConnectionError",
        "not_sent",
        when=lambda error: isinstance(error.__cause__, ProviderUnavailable),
    ),
    # All tries carry one idempotency key: had one worked, Stripe would have repeated its answer.
    ErrorRow("stripe.InvalidRequestError", "refused", status=(400, 404), every_try=True),
    # A restricted key without the right to do this.
    ErrorRow("stripe.PermissionError", "our_credentials"),
)


async def _said(answer: Any, *, acts: bool = True) -> Payment:
    """The payment that a call of the SDK answers."""
    found = await _answered(answer, acts=acts)
    try:
        return Payment(
            intent=str(found.id),
            status=str(found.status),
            amount=int(found.amount),
            currency=str(found.currency),
            client_secret=str(found.client_secret or ""),
        )
    except (AttributeError, TypeError, ValueError) as error:
        raise ProviderUncertain("Stripe answered with something else than a payment") from error


async def _answered(answer: Any, *, acts: bool = True) -> Any:
    """A call of the SDK in our words; one that acts may have happened where nothing is proved."""
    began = time.monotonic()

    def took() -> float:
        return time.monotonic() - began

    try:
        return await answer
    except stripe.CardError as error:
        code = str(getattr(error.error, "decline_code", None) or error.code or "card_declined")
        raise Declined(code, error.user_message or "the card was declined") from error
    except stripe.IdempotencyError as error:
        raise Busy("this reservation is being paid with another card") from error
    except stripe.InvalidRequestError as error:
        if error.code == "payment_intent_unexpected_state":
            raise _Moved("the intent is past being confirmed") from error
        if error.code == "charge_already_refunded":
            raise _GivenBack("the money was given back before") from error
        said = f"Stripe refused: {error.code}"
        raise provider_error(
            judge_client_error(error, _ROWS, took=took()), said, acts=acts
        ) from error
    except stripe.StripeError as error:
        if isinstance(error, stripe.APIError) and error.http_status == 409:
            raise Busy("this reservation is being paid right now") from error
        said = f"Stripe: {type(error).__name__} {error.http_status or ''}".rstrip()
        raise provider_error(
            judge_client_error(error, _ROWS, took=took()), said, acts=acts
        ) from error


class _Transport(stripe.HTTPClient):
    """The SDK's calls through our own client: one deadline, a size limit, no redirects."""

    name = "relevo"

    def __init__(self, outside: Outside) -> None:
        super().__init__()  # pyright: ignore[reportUnknownMemberType] - a parameter of theirs has no type
        self._outside = outside

    async def request_async(
        self, method: str, url: str, headers: Mapping[str, str], post_data: Any = None
    ) -> tuple[bytes, int, Mapping[str, str]]:
        try:
            reply = await self._outside.call(
                method.upper(), url, content=post_data, headers=headers, acts=method != "get"
            )
        except ProviderError as error:
            raise stripe.APIConnectionError(str(error), should_retry=True) from error
        if reply.status == 429:
            reply.check()  # with how long to wait, which the SDK forgets
        return reply.body, reply.status, reply.headers

    def sleep_async(self, secs: float) -> Any:
        return asyncio.sleep(secs)

    async def close_async(self) -> None:
        await self._outside.close()
