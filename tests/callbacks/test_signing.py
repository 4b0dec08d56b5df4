"""Signatures follow Standard Webhooks, and receivers can verify them."""

from __future__ import annotations

import pytest

import penstock
from penstock.callbacks.allow_list import Refused, Settings, allow_list, entry, parse
from penstock.callbacks.signing import key, message_id, signed_headers, verify

SECRET = "correct horse battery staple"
HEADERS = signed_headers([key(SECRET)], "mail:17", 1_700_000_000, b'{"n":1}')


def test_signatures_have_the_form_of_the_standard() -> None:
    # The specification's example.
    secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
    body = b'{"test": 2432232314}'
    headers = signed_headers([key(secret)], "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, body)
    assert headers == {
        "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
        "webhook-timestamp": "1614265330",
        "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    }


def test_signed_requests_verify() -> None:
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
def test_changed_or_old_requests_do_not_verify(changed: dict[str, str], body: bytes, now: float) -> None:
    assert not verify(SECRET, HEADERS | changed, body, now=now)
    assert not verify("another secret of some length", HEADERS, b'{"n":1}', now=1_700_000_000)


def test_secrets_can_be_rotated_without_a_gap() -> None:
    headers = signed_headers([key("the old secret of ours"), key(SECRET)], "mail:1", 1_700_000_000, b"")
    assert verify(SECRET, headers, b"", now=1_700_000_000)
    assert verify("the old secret of ours", headers, b"", now=1_700_000_000)


@pytest.mark.parametrize("secret", ["", "short", "whsec_c2hvcnQ=", "whsec_not base64"])
def test_a_weak_secret_is_refused(secret: str) -> None:
    with pytest.raises(penstock.BadValue, match="a callback secret"):
        key(secret)


def test_ids_have_no_dot_and_fit_a_header() -> None:
    assert message_id("a.b:ü", 17) == "a%2Eb%3A%C3%BC:17"


def test_the_url_is_signed_too() -> None:
    here, other = "https://a.example/hook?x=1", "https://b.example/hook?x=1"
    headers = signed_headers([key(SECRET)], "mail:1", 1_700_000_000, b"body", here)
    assert verify(SECRET, headers, b"body", now=1_700_000_000)
    assert verify(SECRET, headers, b"body", now=1_700_000_000, url=here)
    assert not verify(SECRET, headers, b"body", now=1_700_000_000, url=other)
    assert not verify(SECRET, headers, b"other", now=1_700_000_000, url=here)
    assert not verify(SECRET, HEADERS, b'{"n":1}', now=1_700_000_000, url=here)  # without such a signature


def test_a_receiver_with_its_own_secret_gets_no_other_signature() -> None:
    shared, own = key("the secret of all others"), key(SECRET)
    settings = Settings(allow_list(["*"]), (shared,), receivers=((entry("a.example:8443"), own),))
    assert settings.keys_for(parse("https://a.example:8443/")) == (own,)
    assert settings.keys_for(parse("https://a.example/")) == settings.keys_for(parse("http://b.example/")) == (shared,)
    alone = Settings(allow_list(["*"]), (), receivers=((entry("*.a.example"), own), (entry("*.a.example"), shared)))
    assert alone.keys_for(parse("https://x.a.example/")) == (own, shared)
    with pytest.raises(Refused, match="there is no secret for b.example"):
        alone.keys_for(parse("https://b.example/"))
