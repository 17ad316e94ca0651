"""Events as providers send them: the fields and typical values of their documented bodies.

Above all those that a guard against secrets stumbles over: results of security checks, masked
numbers, tokens of the customer's card, ids and moments as long as a card number.
"""

from __future__ import annotations

from typing import Any

LONG_URL = (
    "https://files.example.com/receipts/CAcaFwoVYWNjdF8xTTJKVGtMa2RJd0h1N2l4KPmM?s=ap&"
    "X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Date=20260102T030405Z&X-Amz-Signature=9f86d081884c7d65"
)
UUID = "0191c9a0-7d3e-7cc2-98c4-1f6cf1b0a2b3"
CHECKS = {
    "address_line1_check": "pass",
    "address_postal_code_check": "unavailable",
    "cvc_check": "pass",
}
CHARGE: dict[str, Any] = {
    "id": "ch_3MmlLrLkdIwHu7ix0snN0B15",
    "object": "charge",
    "amount": 1099,
    "balance_transaction": "txn_3MmlLrLkdIwHu7ix0uke3Ezy",
    "billing_details": {"address": {"postal_code": "42424"}, "email": "ana@example.com"},
    "captured": True,
    "created": 1679090539,
    "failure_code": None,
    "outcome": {"network_status": "approved_by_network", "risk_score": 32, "type": "authorized"},
    "payment_method": "pm_1MmlLrLkdIwHu7ixIJwEWSNR",
    "payment_method_details": {
        "type": "card",
        "card": {
            "authorization_code": "123456",
            "brand": "visa",
            "checks": CHECKS,
            "country": "US",
            "exp_month": 3,
            "exp_year": 2034,
            "fingerprint": "mToisGZ01V71BCos",
            "last4": "4242",
            "network_token": {"used": False},
            "three_d_secure": None,
            "wallet": {"type": "apple_pay", "dynamic_last4": "4242"},
        },
    },
    "receipt_url": "https://pay.stripe.com/receipts/payment/CAcaFwoVYWNjdF8xTTJKVGtMa2RJd0h1N2l4",
}


def _stripe(kind: str, thing: dict[str, Any]) -> dict[str, Any]:
    return {
        "id": "evt_1NG8Du2eZvKYlo2CUI79vXWy",
        "object": "event",
        "api_version": "2026-02-24",
        "created": 1686089970,
        "data": {"object": thing, "previous_attributes": {"status": "requires_action"}},
        "livemode": True,
        "pending_webhooks": 1,
        "request": {"id": "req_1234567890abcd", "idempotency_key": UUID},
        "type": kind,
    }


def _github(**body: Any) -> dict[str, Any]:
    return {
        "repository": {
            "id": 1296269,
            "node_id": "MDEwOlJlcG9zaXRvcnkxMjk2MjY5",
            "full_name": "octo/hello",
            "private": False,
            "ssh_url": "git@github.com:octo/hello.git",
            "clone_url": "https://github.com/octo/hello.git",
            "keys_url": "https://api.github.com/repos/octo/hello/keys{/key_id}",
            "deployments_url": "https://api.github.com/repos/octo/hello/deployments",
            "security_and_analysis": {
                "advanced_security": {"status": "enabled"},
                "secret_scanning": {"status": "enabled"},
                "secret_scanning_push_protection": {"status": "disabled"},
            },
        },
        "sender": {"login": "octocat", "id": 583231, "node_id": "MDQ6VXNlcjU4MzIzMQ=="},
        "installation": {"id": 2311213, "node_id": "MDIzOkludGVncmF0aW9uSW5zdGFsbGF0aW9u"},
        **body,
    }


EVENTS: dict[str, dict[str, Any] | list[Any]] = {
    "stripe charge.succeeded": _stripe("charge.succeeded", CHARGE),
    "stripe charge.refunded": _stripe("charge.refunded", {**CHARGE, "refunded": True}),
    "stripe payment_intent.succeeded": _stripe(
        "payment_intent.succeeded",
        {
            "id": "pi_3MtwBwLkdIwHu7ix28a3tqPa",
            "amount": 2000,
            "client_secret": "",
            "latest_charge": CHARGE,
            "payment_method_options": {"card": {"request_three_d_secure": "automatic"}},
        },
    ),
    "stripe setup_intent.created": _stripe(
        "setup_intent.created", {"id": "seti_1Mm8s8LkdIwHu7ix0OXBfTRG", "client_secret": None}
    ),
    "stripe checkout.session.completed": _stripe(
        "checkout.session.completed",
        {
            "id": "cs_live_a1XYZabcdEFGHijklMNOPqrstUVWX",
            "client_reference_id": "order-1001",
            "client_secret": None,
            "payment_intent": "pi_3MtwBwLkdIwHu7ix28a3tqPa",
            "success_url": "https://shop.example/ok?session_id={CHECKOUT_SESSION_ID}",
            "url": "https://checkout.stripe.com/c/pay/cs_live_a1XYZabcd#fidkdWxOYHwnPyd1blpxYHZxWjA",
        },
    ),
    "stripe customer.subscription.updated": _stripe(
        "customer.subscription.updated",
        {
            "id": "sub_1MowQVLkdIwHu7ixeRlqHVzs",
            "status": "past_due",
            "default_payment_method": "pm_1MmlLrLkdIwHu7ixIJwEWSNR",
            "items": {"data": [{"id": "si_Na6dzxczY5fwHx", "price": {"id": "price_1MowQU"}}]},
        },
    ),
    "stripe issuing_authorization.created": _stripe(
        "issuing_authorization.created",
        {
            "id": "iauth_1JVXl82eZvKYlo2CPIiWlzrn",
            "authorization_method": "online",
            "card": {"id": "ic_1JDmgz2eZvKYlo2CRXlTsXj6", "last4": "6789", "pin": {}},
            "verification_data": {**CHECKS, "expiry_check": "match"},
        },
    ),
    "stripe payment_method.attached": _stripe(
        "payment_method.attached",
        {"id": "pm_1Q0PsIJvEtkwdCNYMSaVuRz6", "card": {"checks": CHECKS, "last4": "4242"}},
    ),
    "stripe thin event": {
        "id": "evt_test_65R9Ijk8dKEYZcXeRWn16R9A7j1FSQ3w3TGDPLLGSM4CW0",
        "object": "v2.core.event",
        "type": "v1.billing.meter.error_report_triggered",
        "created": "2026-01-02T03:04:05.678Z",
        "related_object": {"id": "mtr_test_61RM8ltWcTW4mbsxf16RJyfa2", "type": "billing.meter"},
    },
    "github ping": _github(
        zen="Keep it logically awesome.",
        hook_id=109948940,
        hook={
            "type": "Repository",
            "id": 109948940,
            "name": "web",
            "events": ["push"],
            "config": {
                "content_type": "json",
                "insecure_ssl": "0",
                "secret": "********",
                "url": "https://shop.example/hooks/github",
            },
            "last_response": {"code": None, "status": "unused", "message": None},
        },
    ),
    "github push": _github(
        ref="refs/heads/main",
        before="6113728f27ae82c7b1a177c8d03f9e96e0adf246",
        after="0000000000000000000000000000000000000000",
        commits=[
            {
                "id": "7fd1a60b01f91b314f59955a4e4d4e80d8edf11d",
                "message": "Rotate the password of the database\n\nThe secret: see the vault.",
                "modified": ["config/secrets.yml", "src/password.py"],
            }
        ],
        pusher={"name": "octocat", "email": "octocat@github.com"},
    ),
    "github secret_scanning_alert": _github(
        action="created",
        alert={
            "number": 42,
            "state": "open",
            "secret_type": "mailchimp_api_key",
            "secret_type_display_name": "Mailchimp API Key",
            "validity": "unknown",
            "push_protection_bypassed": False,
            "publicly_leaked": False,
            "has_more_locations": False,
        },
    ),
    "github security_and_analysis": _github(
        changes={"from": {"security_and_analysis": {"secret_scanning": {"status": "disabled"}}}}
    ),
    "github pull_request": _github(
        action="opened",
        number=2,
        pull_request={
            "id": 279147437,
            "title": "Let a person set a new password",
            "body": "The field `password: str` was refused. Fixes #1.",
            "head": {"sha": "ec26c3e57ca3a959ca5aad62de7213c562f8c821", "ref": "changes"},
            "author_association": "OWNER",
        },
    ),
    "github workflow_job": _github(
        action="completed",
        workflow_job={"id": 2832853555, "run_id": 940463255, "conclusion": "success", "steps": []},
    ),
    "github release": _github(
        action="published", release={"tag_name": "v1.2.3", "body": "Basic auth is gone."}
    ),
    "shopify orders/create": {
        "id": 820982911946154508,
        "admin_graphql_api_id": "gid://shopify/Order/820982911946154508",
        "browser_ip": "216.191.105.146",
        "cart_token": "68778783ad298f1c80c3bafcddeea02f",
        "checkout_token": "bd5a8aa1ecd019dd3520ff791ee3a24c",
        "client_details": {"accept_language": "en", "user_agent": "Mozilla/5.0"},
        "confirmation_number": "4201234567890128",
        "order_number": 1234,
        "token": "123456abcd",
        "total_price": "403.00",
        "payment_details": {
            "credit_card_bin": "424242",
            "avs_result_code": "Y",
            "cvv_result_code": "M",
            "credit_card_number": "•••• •••• •••• 4242",
            "credit_card_company": "Visa",
            "credit_card_name": "Ana Perez",
        },
        "payment_gateway_names": ["shopify_payments"],
        "customer": {"id": 115310627314723954, "state": "disabled", "phone": "+525512345678"},
    },
    "shopify order transactions": {
        "id": 389404469,
        "authorization": "ch_1AtJu6CktlpKSclI4zjeQb2t",
        "receipt": {"testcase": True, "authorization": "123456"},
        "payment_details": {"credit_card_number": "XXXX-XXXX-XXXX-4242", "cvv_result_code": None},
    },
    "shopify fulfillments/create": {
        "id": 123456,
        "tracking_company": "UPS",
        "tracking_number": "4242424242424242",
        "tracking_numbers": ["4242424242424242"],
        "tracking_url": "https://www.ups.com/track?tracknum=4242424242424242",
        "tracking_code": "4242424242424242",
    },
    "shopify app/uninstalled": {"id": 548380009, "myshopify_domain": "a.myshopify.com"},
    "slack event_callback": {
        "token": "XXYYZZ",
        "team_id": "T123ABC456",
        "api_app_id": "A123ABC456",
        "event": {
            "type": "message",
            "user": "U123ABC456",
            "text": "what is the wifi password? pass: 3",
            "ts": "1515449522.000016",
            "event_ts": "1515449522.000016",
        },
        "type": "event_callback",
        "authorizations": [
            {"enterprise_id": None, "team_id": "T123ABC456", "user_id": "U123", "is_bot": False}
        ],
        "event_context": "EC123ABC456",
        "event_id": "Ev123ABC456",
    },
    "slack slash command": {
        "token": "gIkuvaNzQIHg97ATvDxqgjtO",
        "team_domain": "example",
        "command": "/weather",
        "text": "94070",
        "response_url": "https://hooks.slack.com/commands/T0001/1234567890/5678abcDEFghiJKLmnopQRST",
        "trigger_id": "13345224609.738474920.8088930838d88f008e0",
    },
    "slack block_actions": {
        "type": "block_actions",
        "token": "9s8d9as89d8as9d8as989",
        "response_url": "https://hooks.slack.com/actions/AABA1ABCD/1232321423432/D09sSasdasdAS9091209",
        "actions": [{"action_id": "WaXA", "block_id": "=qXel", "value": "click_me_123"}],
    },
    "twilio message status": {
        "AccountSid": "AC" + "a1b2c3d4" * 4,
        "MessageSid": "SM" + "0f9e8d7c" * 4,
        "MessageStatus": "delivered",
        "From": "+14155238886",
        "To": "whatsapp:+5215512345678",
        "Body": "Your code is 4711",
    },
    "twilio voice": {
        "CallSid": "CA" + "a1b2c3d4" * 4,
        "CallToken": "%7B%22parentCallInfoToken%22%7D",
        "StirVerstat": "TN-Validation-Passed-A",
        "Digits": "1234",
    },
    "mercado pago payment": {
        "id": 12345,
        "live_mode": True,
        "type": "payment",
        "action": "payment.created",
        "api_version": "v1",
        "user_id": "44444",
        "data": {"id": "999999999"},
    },
    "mercado pago payment object": {
        "id": 20359978,
        "authorization_code": "301299",
        "card": {
            "first_six_digits": "503175",
            "last_four_digits": "0604",
            "cardholder": {"name": "APRO", "identification": {"number": "12345678909"}},
        },
        "statement_descriptor": "MERCADOPAGO",
        "three_ds_info": {"external_resource_url": "https://acs.example", "creq": None},
        "transaction_details": {"payment_method_reference_id": "4509953566233704"},
    },
    "mercado pago ipn": {"resource": "/v1/payments/20359978", "topic": "payment"},
    "whatsapp message": {
        "object": "whatsapp_business_account",
        "entry": [
            {
                "id": "102290129340398",
                "changes": [
                    {
                        "field": "messages",
                        "value": {
                            "metadata": {"phone_number_id": "106540352242922"},
                            "contacts": [{"wa_id": "5215512345678"}],
                            "messages": [
                                {
                                    "from": "5215512345678",
                                    "id": "wamid.HBgNNTIxNTUxMjM0NTY3OBUCABIYFjNFQjBDOUVD",
                                    "timestamp": "1767312000",
                                    "text": {"body": "mi clave de reserva es RES-7K2M"},
                                    "type": "text",
                                }
                            ],
                        },
                    }
                ],
            }
        ],
    },
    "messenger message": {
        "object": "page",
        "entry": [
            {
                "id": "4111111111111111",
                "time": 1458692752478,
                "messaging": [
                    {
                        "sender": {"id": "4242424242424242"},
                        "recipient": {"id": "5555555555554444"},
                        "message": {
                            "mid": "m_AG5Hz2Uq7tuwNEhXfYYKj8mJEM_QPpz5jdCK48PnKAjS",
                            "text": "x",
                        },
                    }
                ],
            }
        ],
    },
    "instagram comments": {
        "object": "instagram",
        "entry": [{"id": "17841405793187218", "changes": [{"value": {"id": "17865799348089039"}}]}],
    },
    "meta lead ads": {
        "object": "page",
        "entry": [
            {"changes": [{"value": {"leadgen_id": 4444333322221111, "form_id": 1, "ad_id": 2}}]}
        ],
    },
    "paddle transaction.completed": {
        "event_id": "evt_01hv8xkfgatyv9e2tsk7h8e5mq",
        "event_type": "transaction.completed",
        "occurred_at": "2026-04-12T10:18:49.621022Z",
        "notification_id": "ntf_01hv8xkfgatyv9e2tsk7h8e5mq",
        "data": {
            "id": "txn_01hv8wptq8987qeep44cyrewp9",
            "checkout": {"url": "https://shop.example?_ptxn=txn_01hv8wptq8987qeep44cyrewp9"},
            "payments": [
                {
                    "stored_payment_method_id": "281ff2ca-8550-42b9-bf39-15948e7de62d",
                    "method_details": {"type": "card", "card": {"type": "visa", "last4": "3184"}},
                    "error_code": None,
                }
            ],
        },
    },
    "paddle subscription.updated": {
        "event_type": "subscription.updated",
        "data": {
            "management_urls": {"cancel": "https://buyer-portal.paddle.com/x?token=pga_eyJhbG"}
        },
    },
    "sendgrid events": [
        {
            "email": "example@test.com",
            "timestamp": 1513299569,
            "smtp-id": "<14c5d75ce93.dfd.64b469@ismtpd-555>",
            "event": "click",
            "sg_event_id": "ZGVsaXZlcmVkLTAtMTk3NjQ5NjctR0tTQ1hoXzRSNk",
            "sg_message_id": "14c5d75ce93.dfd.64b469.filter0001.16648.5515E0B88.0",
            "url": "https://shop.example/reset?password_token=x1",
            "tls": 1,
        },
        {"email": "a@test.com", "event": "bounce", "status": "5.0.0", "reason": "500 unknown user"},
    ],
    "discord interaction": {
        "id": "846462639134605312",
        "application_id": "4111111111111111",
        "type": 2,
        "token": "aW50ZXJhY3Rpb246ODQ2NDYyNjM5MTM0NjA1MzEyOkVVUzc2ZGJjaGp3dW5icGp3bWs",
        "member": {
            "permissions": "2147483647",
            "user": {"id": "53908232506183680", "public_flags": 1},
        },
        "data": {"name": "pay", "options": [{"name": "amount", "value": 3}]},
    },
    "discord event": {
        "version": 1,
        "application_id": "1234560123453231555",
        "type": 1,
        "event": {"type": "APPLICATION_AUTHORIZED", "data": {"scopes": ["applications.commands"]}},
    },
    "gitlab push": {
        "object_kind": "push",
        "checkout_sha": "da1560886d4f094c3e6c9ef40349f7d38b5d27d7",
        "user_username": "jsmith",
        "project": {
            "id": 15,
            "git_ssh_url": "git@example.com:mike/diaspora.git",
            "ci_config_path": "",
        },
        "commits": [
            {"id": "b6568db1bc1dcd7f8b4d5a946b0b91f9dacd7327", "message": "Update the token."}
        ],
    },
    "gitlab pipeline": {
        "object_kind": "pipeline",
        "object_attributes": {
            "variables": [{"key": "NESTOR_PROD_ENVIRONMENT", "value": "us-west-1"}],
            "protected_ref": True,
        },
    },
    "gitlab access token expiry": {
        "object_kind": "access_token",
        "object_attributes": {"user_id": 90, "id": 25, "name": "acd", "expires_at": "2026-01-26"},
        "event_name": "expiring_access_token",
    },
    "telegram message": {
        "update_id": 10000,
        "message": {
            "message_id": 1365,
            "date": 1441645532,
            "chat": {"id": -1001234567890, "type": "group", "username": "Test"},
            "text": "/start my_password_is_safe",
            "entities": [{"type": "bot_command", "offset": 0, "length": 6}],
        },
    },
    "telegram pre_checkout_query": {
        "update_id": 10001,
        "pre_checkout_query": {
            "id": "4242424242424242",
            "currency": "EUR",
            "invoice_payload": "o-1",
        },
    },
    "square payment.updated": {
        "merchant_id": "6SSW7HV8K2ST5",
        "type": "payment.updated",
        "event_id": "6a8f5f28-54a1-4eb0-a98a-3111513fd4fc",
        "data": {
            "id": "hYy9pRFVxpDsO1FB05SunFWUe9JZY",
            "object": {
                "payment": {
                    "card_details": {
                        "auth_result_code": "68aLBM",
                        "avs_status": "AVS_ACCEPTED",
                        "cvv_status": "CVV_ACCEPTED",
                        "card": {"bin": "540988", "card_brand": "MASTERCARD", "last_4": "9029"},
                        "card_payment_timeline": {"authorized_at": "2026-11-22T21:16:51.198Z"},
                    },
                    "receipt_number": "hYy9",
                    "version_token": "FfQhQJf9r3VSQIgyWBk1oqhIwiznLwVwJbVVA0bdyEv6o",
                }
            },
        },
    },
    "adyen AUTHORISATION": {
        "live": "false",
        "notificationItems": [
            {
                "NotificationRequestItem": {
                    "additionalData": {
                        "authCode": "1234",
                        "cardSummary": "7777",
                        "cvcResult": "1 Matches",
                        "cvcResultRaw": "M",
                        "avsResult": "4 AVS not supported for this card type",
                        "expiryDate": "12/2030",
                        "hmacSignature": "coqCmt/IZ4E3CzPvMY8zTjQVL5hYJUiBRg8UU+iCWo0=",
                        "recurring.recurringDetailReference": "8415698462516992",
                        "tokenization.storedPaymentMethodId": "M5N7TQ4TG5PFWR50",
                        "networkTxReference": "2595259525952595",
                        "threeDAuthenticated": "false",
                    },
                    "amount": {"currency": "EUR", "value": 1130},
                    "eventCode": "AUTHORISATION",
                    "pspReference": "8515131751004933",
                    "originalReference": "5555555555554444",
                    "reason": "033899:1111:03/2030",
                    "success": "true",
                }
            }
        ],
    },
    "adyen report": {
        "notificationItems": [
            {"NotificationRequestItem": {"eventCode": "REPORT_AVAILABLE", "reason": LONG_URL}}
        ]
    },
    "paypal capture": {
        "id": "WH-58D329510W468432D-8HN650336L201105X",
        "event_type": "PAYMENT.CAPTURE.COMPLETED",
        "resource": {
            "id": "42311647XV020574X",
            "invoice_id": "4111111111111111",
            "processor_response": {"avs_code": "Y", "cvv_code": "M", "response_code": "0000"},
            "seller_protection": {"status": "ELIGIBLE"},
        },
        "resource_type": "capture",
    },
    "paypal authorization": {
        "event_type": "PAYMENT.AUTHORIZATION.CREATED",
        "resource_type": "authorization",
        "resource": {"id": "2DC87612EK520411B", "authorization": {"id": "2DC87612EK520411B"}},
        "links": [{"rel": "self", "href": "https://api.paypal.com/v2/payments/authorizations/2DC"}],
    },
    "zoom meeting.started": {
        "event": "meeting.started",
        "event_ts": 1626230691572,
        "payload": {
            "account_id": "AAAAAABBBB",
            "object": {"id": "1234567890", "uuid": "4444AAAiAAAAAiAiAiiAii==", "password": ""},
        },
    },
    "zoom meeting.created": {
        "event": "meeting.created",
        "payload": {
            "object": {"id": 94126524251, "password": "******", "settings": {"use_pmi": False}}
        },
    },
    "hubspot": [
        {
            "eventId": 100,
            "subscriptionId": 2264,
            "portalId": 62515,
            "occurredAt": 1567110437,
            "subscriptionType": "contact.propertyChange",
            "attemptNumber": 0,
            "objectId": 1246965,
            "propertyName": "hs_pin",
            "propertyValue": "3",
        }
    ],
    "typeform": {
        "event_id": "LtWXD3crgy",
        "event_type": "form_response",
        "form_response": {
            "form_id": "lT4Z3j",
            "token": "a3a12ec67a1365927098a606107fac15",
            "definition": {"fields": [{"id": "SMEUb7VJz92Q", "title": "Your password hint?"}]},
            "answers": [{"type": "text", "text": "Laura's password hint", "field": {"id": "J"}}],
        },
    },
    "calendly": {
        "event": "invitee.created",
        "payload": {
            "uri": "https://api.calendly.com/scheduled_events/AAA/invitees/BBB",
            "cancel_url": "https://calendly.com/cancellations/AAAAAAAAAAAAAAAA",
            "questions_and_answers": [{"answer": "4711", "question": "PIN of the parking"}],
            "payment": {"external_id": "ch_AAAAAAAAAAAAAAAAAAAAAAAA", "provider": "stripe"},
        },
    },
    "linear": {
        "action": "update",
        "type": "Issue",
        "data": {
            "id": "539068e2-ae88-4d09-bd75-22eb4a59612f",
            "title": "Passwords reset",
            "identifier": "LIN-4242",
        },
        "webhookTimestamp": 1676056940508,
    },
    "notion": {
        "id": "367cba44-b6f3-4c92-81e7-6a2e9659efd4",
        "type": "page.created",
        "attempt_number": 1,
        "integration_id": "d872b594-8fd4-806d-bc6e-00378d5e3a4b",
        "authors": [{"id": "c7c11cca-1d73-471d-9b6e-bdef51470190", "type": "person"}],
    },
    "jira": {
        "webhookEvent": "jira:issue_updated",
        "timestamp": 1525698237764,
        "issue": {
            "key": "SEC-42",
            "fields": {"summary": "Secret: rotate it", "labels": ["secret"]},
        },
        "changelog": {"items": [{"field": "password", "from": None, "toString": "changed"}]},
    },
    "intercom": {
        "type": "notification_event",
        "app_id": "a86dr8yl",
        "topic": "conversation.user.created",
        "id": "notif_6e3b1f30-9f5e-11ea-8fd5-5f3c4a0b3d3b",
        "data": {"item": {"custom_attributes": {"pin": 110001, "pass": 3, "clave": "A-100"}}},
    },
    "woocommerce order": {
        "id": 727,
        "number": "727",
        "order_key": "wc_order_58d2d042d1d",
        "payment_method": "bacs",
        "transaction_id": "5555555555554444",
        "cart_hash": "b9a9f5d9a3f7",
        "meta_data": [{"id": 13106, "key": "_download_permissions_granted", "value": "yes"}],
    },
    "mailgun": {
        "signature": {
            "timestamp": "1529006854",
            "token": "a8ce0edb2dd8301dee6c2405235584e45aa91d1e9f979f3de0",
            "signature": "d2271d12299f6592d9d44cd9d250f0704e4674c30d79d07c47a66f95ce71cf55",
        },
        "event-data": {
            "event": "opened",
            "id": "DACSsAdVSeGpLid7TN03WA",
            "flags": {"is-authenticated": True},
            "storage": {"key": "eyJwIjpmYWxzZSwiayI6IjE", "url": "https://se.api.mailgun.net/v3/d"},
        },
    },
    "postmark": {
        "RecordType": "Bounce",
        "ID": 4323372036854775807,
        "MessageID": "883953f4-6105-42a2-a16a-77a8eac79483",
        "Type": "HardBounce",
        "Details": "smtp;550 5.1.1 password authentication failed for user",
    },
    "aws sns": {
        "Type": "Notification",
        "MessageId": "22b80b92-fdea-4c2c-8f9d-bdfb0c7bf324",
        "Message": '{"order":"1001","password_changed":true}',
        "Signature": "EXAMPLEw6JRNwm1LFQL4ICB0bnXrdB8ClRMTQFGBqwLpGbM78tJ4etTwC5zU7O3tS6tGpey",
        "SigningCertURL": "https://sns.us-east-1.amazonaws.com/SimpleNotificationService-f3ecf.pem",
        "UnsubscribeURL": "https://sns.us-east-1.amazonaws.com/?Action=Unsubscribe",
    },
    "aws sns confirmation": {
        "Type": "SubscriptionConfirmation",
        "Token": "2336412f37f" * 20,
        "SubscribeURL": "https://sns.us-east-1.amazonaws.com/?Token=2336412f37f",
    },
    "resend": {
        "type": "email.bounced",
        "data": {"email_id": UUID, "subject": "Your password was reset", "to": ["a@example.com"]},
    },
    "clerk user.created": {
        "type": "user.created",
        "object": "event",
        "data": {
            "id": "user_29w83sxmDNGwOuEthce5gg56FcC",
            "password_enabled": True,
            "two_factor_enabled": False,
            "passkeys": [],
            "external_accounts": [],
            "private_metadata": {},
            "public_metadata": {},
        },
    },
    "openai response.completed": {
        "id": "evt_685343a1381c819085d44c354e1b330e",
        "object": "event",
        "type": "response.completed",
        "data": {"id": "resp_abc123"},
        "usage": {"input_tokens": 36, "output_tokens": 87, "max_tokens": 4096},
    },
    "conekta order.paid": {
        "type": "order.paid",
        "data": {
            "object": {
                "charges": {
                    "data": [
                        {
                            "payment_method": {
                                "object": "card_payment",
                                "last4": "4242",
                                "auth_code": "000000",
                                "bin": "424242",
                            }
                        }
                    ]
                }
            }
        },
    },
    "openpay charge": {
        "type": "charge.succeeded",
        "transaction": {
            "authorization": "801585",
            "card": {"card_number": "411111XXXXXX1111", "holder_name": "Ana", "cvv2": None},
            "bank_account": {"clabe": "646180157000000004"},
        },
    },
    "cfdi": {
        "clave": "90101501",
        "clave_producto": "90101501",
        "claveAcceso": "2110201101179214673900110020010000000011234567813",
        "folio": "4111111111111111",
        "pan": "ABCDE1234F",
        "pin": "110001",
        "pass": 3,
        "tarjeta": "visa",
    },
    "docusign": {
        "event": "envelope-completed",
        "data": {
            "accountId": UUID,
            "envelopeSummary": {
                "recipients": {"signers": [{"accessCode": "", "requireIdLookup": "false"}]}
            },
        },
    },
    "okta": {
        "eventType": "com.okta.event_hook",
        "data": {
            "events": [
                {
                    "eventType": "user.account.update_password",
                    "outcome": {"result": "SUCCESS"},
                    "authenticationContext": {
                        "credentialType": "PASSWORD",
                        "externalSessionId": "x1",
                    },
                }
            ]
        },
    },
    "auth form errors": {
        "errors": {
            "password": ["is too short (minimum is 8 characters)", "can't be blank"],
            "cvc": "invalid",
        },
        "password": "required",
        "secret": "not_set",
        "api_key": "[FILTERED]",
        "access_token": "<redacted>",
    },
    "easypost tracker": {
        "description": "tracker.updated",
        "result": {
            "id": "trk_1234567890abcdef",
            "tracking_code": "4242424242424242",
            "carrier": "USPS",
            "tracking": {"number": "4242424242424242", "code": "4242424242424242"},
        },
    },
    "airbnb style booking": {
        "booking": {"confirmation_code": "HMABCDEFGH", "door_code": "4711", "wifi_password": ""},
        "milliseconds": 1767312000000,
        "micros": 1767312000000000,
        "nanos": 1767312000000000000,
    },
}
