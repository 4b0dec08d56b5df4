"""The signature is that of the Standard Webhooks, and receivers can verify it."""

from __future__ import annotations

import pytest

import penstock
from penstock.callbacks.signing import key, message_id, signed_headers, verify

SECRET = "correct horse battery staple"
HEADERS = signed_headers([key(SECRET)], "mail:17", 1_700_000_000, b'{"n":1}')


def test_the_form_is_that_of_the_standard() -> None:
    # The example of the specification.
    secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
    body = b'{"test": 2432232314}'
    headers = signed_headers([key(secret)], "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, body)
    assert headers == {
        "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
        "webhook-timestamp": "1614265330",
        "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    }


def test_what_was_signed_verifies() -> None:
    assert verify(SECRET, HEADERS, b'{"n":1}', now=1_700_000_000)
    assert verify(SECRET, {name.title(): value for name, value in HEADERS.items()}, b'{"n":1}', now=1_700_000_299.9)


@pytest.mark.parametrize(
    ("changed", "body", "now"),
    [
        ({}, b'{"n":2}', 1_700_000_000),
        ({"webhook-id": "mail:18"}, b'{"n":1}', 1_700_000_000),
        ({"webhook-timestamp": "1700000001"}, b'{"n":1}', 1_700_000_000),
        ({"webhook-timestamp": "soon"}, b'{"n":1}', 1_700_000_000),
        ({"webhook-timestamp": ""}, b'{"n":1}', 1_700_000_000),
        ({"webhook-signature": ""}, b'{"n":1}', 1_700_000_000),
        ({"webhook-signature": "v1,ünknown"}, b'{"n":1}', 1_700_000_000),
        ({}, b'{"n":1}', 1_700_000_301),
        ({}, b'{"n":1}', 1_699_999_699),
    ],
)
def test_what_was_changed_or_is_old_does_not(changed: dict[str, str], body: bytes, now: float) -> None:
    assert not verify(SECRET, HEADERS | changed, body, now=now)
    assert not verify("another secret of some length", HEADERS, b'{"n":1}', now=1_700_000_000)


def test_secrets_can_be_changed_without_a_gap() -> None:
    headers = signed_headers([key("the old secret of ours"), key(SECRET)], "mail:1", 1_700_000_000, b"")
    assert verify(SECRET, headers, b"", now=1_700_000_000)
    assert verify("the old secret of ours", headers, b"", now=1_700_000_000)


@pytest.mark.parametrize("secret", ["", "short", "whsec_c2hvcnQ=", "whsec_not base64"])
def test_a_weak_secret_is_refused(secret: str) -> None:
    with pytest.raises(penstock.BadValue, match="a callback secret"):
        key(secret)


def test_ids_have_no_dot_and_fit_a_header() -> None:
    assert message_id("a.b:ü", 17) == "a%2Eb%3A%C3%BC:17"
