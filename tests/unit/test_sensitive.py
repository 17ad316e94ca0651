"""Names and values that must not travel, and the many that only look like them."""

from __future__ import annotations

import base64
import json
import random

import pytest

from relevo.sensitive import leaks, looks_clean, luhn, mask, names_secret, number_leak

CARDS = [
    "4111111111111111",  # Visa
    "4111 1111 1111 1111",
    "4111-1111-1111-1111",
    "4000000000000000006",  # Visa, 19 digits
    "5555555555554444",  # Mastercard
    "2223003122003222",  # Mastercard, the newer range
    "378282246310005",  # American Express
    "3782 822463 10005",
    "6011111111111117",  # Discover
    "3530111333300000",  # JCB
    "30569309025904",  # Diners
    "6200000000000005",  # UnionPay
]


def _base64url(value: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


JWT = f"{_base64url({'alg': 'HS256', 'typ': 'JWT'})}.{_base64url({'sub': '1'})}.c2lnbmF0dXJl"
# Put together here, so that no scanner takes this file for a leak.
KEYS = [
    "sk_" + "live_51Habcdefghijkl",
    "rk_" + "live_51Habcdefghijkl",
    "wh" + "sec_abcdefghijklmnop",
    "xox" + "b-123456789012-abcdefGHIJ",
    "gh" + "p_" + "a1B2" * 9,
    "github" + "_pat_" + "a1B2" * 9,
    "AK" + "IAIOSFODNN7EXAMPLE",
    "AI" + "zaSyA1234567890abcdefghijklmnopqrstu",
]
PEM = "-----BEGIN {}PRIVATE KEY-----\nMIIEvQ\n-----END {}PRIVATE KEY-----"
RANDOM = random.Random(7).randbytes(3_072)
SECRETS = [
    *CARDS,
    JWT,
    *KEYS,
    PEM.format("", ""),
    PEM.format("RSA ", "RSA "),
    PEM.format("OPENSSH ", "OPENSSH "),
    "Bearer abc",
    "Bearer 0123456789abcdef",
    "Basic " + base64.b64encode(b"user:pass").decode(),
    "Authorization: Basic " + base64.b64encode(b"bob:builder").decode(),
    "postgresql://bob:builder@db.example/app",
    "data:image/png;base64,iVBORw0KGgo=",
    base64.b64encode(RANDOM).decode(),
    base64.encodebytes(RANDOM).decode(),
    RANDOM.hex(),
]

INNOCENT = [
    "",
    "RES-7K2M",
    "0191c9a0-7d3e-7cc2-98c4-1f6cf1b0a2b3",
    "01234567-4111-4111-8111-111111111111",
    "1767312000000",  # milliseconds
    "1767312000000000",  # microseconds
    "1767312000000000000",  # nanoseconds
    "2026-01-02T03:04:05+00:00",
    "20260102030405",
    "4111111111111112",  # the check digit is wrong
    "ORD-4111111111111111",
    "order_4111111111111111",
    "A4111111111111111",
    "41111111111111110000",  # too long
    "+4915112345678",
    "4915112345678",  # a phone of Germany
    "4006381333931",  # a barcode
    "646180157000000004",  # CLABE
    "ES91 2100 0418 4502 0005 1332",
    "AT68 4300 0123 4567 8902",  # IBAN whose rest could be a card
    "GB82WEST12345698765432",
    "19.4326077123456789",
    "0.4111111111111111",
    "Basic plan",
    "Basic authentication",
    "the bearer of good news arrived",
    "eyJust.a.joke",
    "https://bucket.example/file.pdf?X-Amz-Signature=0a1b2c&X-Amz-Expires=300",
    "http://localhost:8700/a@b",
    "mailto:someone@example.com",
    "-----BEGIN PUBLIC KEY-----\nMIIB\n-----END PUBLIC KEY-----",
    "x" * 60_000,
    "palabra " * 5_000,
]


SECRET_NAMES = """
    password Password PASSWORD userPassword user-password pass_word passwords db_passwd pwd
    passphrase password_hash new_password password_confirmation dbpassword password2
    secret secrets client_secret clientSecret webhook_secret SECRET_KEY token_secret
    api_key apikey apiKey API-KEY X-Api-Key stripe_api_keys access_token accessToken ACCESSTOKEN
    refresh_token auth_token authorization Authorization Proxy-Authorization
    private_key privateKey ssh_private_key cvv CVV2 cvc card_cvc security_code
    card_number cardNumber CARDNUMBER credit_card_number cc_number pan card_pan pin user_pin pass
    contraseña contrasena Contraseña CONTRASEÑA contraseñas contraseña_nueva
    clave CLAVE nueva_clave clave_de_acceso clave_secreta mi_clave
    tarjeta numero_tarjeta número_de_tarjeta numeroTarjeta tarjeta_numero tarjeta_de_credito
    código_seguridad senha Senha numero_cartao mot_de_passe password_reset_token
""".split()  # noqa: SIM905 - a list of eighty strings is no better read
INNOCENT_NAMES = """
    pinned company companion secretary secretaria panel spanish opinion passenger passport compass
    password_reset_id password_id password_changed_at passwordChangedAt password_reset_at
    token token_id tokens max_tokens device_token payment_token page_token secret_name secret_id
    has_password is_secret requires_pin api_key_id access_key_id public_key idempotency_key key
    card card_id card_last4 card_number_last4 card_brand gift_card_number loyalty_card_number
    clave_producto clave_unidad palabra_clave palabras_clave enclave
    tarjeta_id id_tarjeta tipo_tarjeta token_tarjeta tarjeta_embarque tarjeta_regalo marca_tarjeta
    pan_integral pin_code author authorization_code authorized authorization_id
    __proto__ constructor 日本 _ 1
""".split()  # noqa: SIM905 - nor is this one


@pytest.mark.parametrize("text", SECRETS, ids=lambda text: text[:12])
def test_b32_secrets_are_known_by_their_look(text: str) -> None:
    assert any(leaks(text))
    assert any(leaks(f"see: {text}")) or text == "Bearer abc"
    assert not looks_clean(json.dumps(text).encode())


@pytest.mark.parametrize("text", INNOCENT, ids=lambda text: text[:24])
def test_b33_look_alikes_pass(text: str) -> None:
    assert not list(leaks(text))


def test_the_iban_among_the_look_alikes_is_one_that_needs_its_check() -> None:
    assert luhn("4300012345678902")
    assert any(leaks("4300 0123 4567 8902"))
    assert any(leaks("AT69 4300 0123 4567 8902"))  # mod 97 says no


def test_a_card_is_found_inside_prose_and_beside_its_expiry() -> None:
    (leak,) = leaks("pay with 4111 1111 1111 1111 12/28, please")
    assert leak.what == "a card number"
    assert (leak.start, leak.end) == (9, 28)
    assert "token" in leak.instead


@pytest.mark.parametrize("name", ["order_id", "orderId", "wa_id", "ean", "created_at", "folio"])
def test_b33_a_bare_number_passes_under_a_name_that_explains_it(name: str) -> None:
    assert not list(leaks("4111111111111111", name))
    assert number_leak(4111111111111111, name) is None


@pytest.mark.parametrize("name", ["", "note", "number", "card_id", "tarjeta_ref", "valid"])
def test_a_card_number_is_refused_under_any_other(name: str) -> None:
    assert any(leaks("4111111111111111", name))
    assert number_leak(4111111111111111, name)


def test_a_name_explains_a_bare_number_only() -> None:
    assert any(leaks("4111 1111 1111 1111", "order_id"))
    assert any(leaks("card 4111111111111111", "order_id"))


@pytest.mark.parametrize("number", [0, -4111111111111111, 1767312000000000, 2**70, 28])
def test_other_integers_are_no_cards(number: int) -> None:
    assert number_leak(number) is None


@pytest.mark.parametrize("name", SECRET_NAMES)
def test_b32_secrets_are_known_by_their_name(name: str) -> None:
    assert names_secret(name)


@pytest.mark.parametrize("name", INNOCENT_NAMES)
def test_names_that_only_sound_like_secrets_pass(name: str) -> None:
    assert not names_secret(name)


@pytest.mark.parametrize("name", ["", " ", "_", "1", "x" * 100_000], ids=len)
def test_names_without_words_pass(name: str) -> None:
    assert not names_secret(name)


@pytest.mark.parametrize("secret", SECRETS, ids=lambda text: text[:12])
def test_a_mask_hides_what_must_not_be_seen(secret: str) -> None:
    masked = mask(f"see: {secret}") if secret != "Bearer abc" else mask(secret)
    assert secret not in masked
    assert "***" in masked
    assert not list(leaks(masked))


@pytest.mark.parametrize(
    ("text", "name", "masked"),
    [
        ("4111 1111 1111 1111", "", "***1111"),
        ("write to maria.lopez@example.com now", "", "write to m***@example.com now"),
        ("+52 55 1234 5678", "", "***78"),
        ("call (55) 1234-5678 or 664 123 4567", "", "call ***78 or ***67"),
        ("5215512345678", "from", "***78"),
        ("5215512345678", "telefono_movil", "***78"),
        ("5215512345678", "order_id", "5215512345678"),
        ("2026-01-02T03:04:05Z", "", "2026-01-02T03:04:05Z"),
        ("0191c9a0-7d3e-7cc2-98c4-1f6cf1b0a2b3", "", "0191c9a0-7d3e-7cc2-98c4-1f6cf1b0a2b3"),
        ("RES-7K2M", "reservation_code", "RES-7K2M"),
        ("half \ud800 a pair", "", "half ? a pair"),
    ],
)
def test_a_mask_leaves_enough_to_recognise(text: str, name: str, masked: str) -> None:
    assert mask(text, name) == masked


@pytest.mark.parametrize(
    "text",
    [
        ("a" * 4_000 + " ") * 16,
        "eyJ" * 20_000,
        "data:" * 12_000,
        "4 " * 30_000,
        "://a:" * 12_000,
        "Bearer " * 9_000,
        "-----BEGIN PRIVATE KEY-----" * 2_000,
        "a.b@" * 16_000,
        "+1 " * 20_000,
        "ES91 " * 12_000,
        "_" * 60_000,
    ],
    ids=lambda text: text[:8],
)
@pytest.mark.timeout(5)
def test_no_text_takes_long(text: str) -> None:
    list(leaks(text))
    mask(text)
