"""Which URLs, hosts and addresses are called: internal ones are refused unless the allow list has them."""

from __future__ import annotations

from ipaddress import ip_address

import pytest

import penstock
from penstock.callbacks.allow_list import AllowList, Refused, allow_list, is_public, parse

INTERNAL = """
    0.0.0.0 0.1.2.3 10.0.0.1 100.64.0.1 100.127.255.255 127.0.0.1 127.255.255.254 169.254.169.254 172.16.0.1
    172.31.255.255 192.0.0.1 192.0.0.8 192.0.0.192 192.0.2.1 192.88.99.1 192.168.1.1 198.18.0.1 198.19.255.255
    198.51.100.1 203.0.113.1 224.0.0.1 239.255.255.255 240.0.0.1 255.255.255.255 168.63.129.16
    :: ::1 ::127.0.0.1 ::ffff:127.0.0.1 ::ffff:8.8.8.8 ::ffff:0:127.0.0.1 64:ff9b::7f00:1 64:ff9b::808:808
    64:ff9b:1::7f00:1 100::1 2001::1 2001:0:7f00:1:: 2001:10::1 2001:20::1 2001:db8::1 2002:7f00:1:: 2002:808:808::1
    3fff::1 5f00::1 fc00::1 fd00:ec2::254 fe80::1 fe80::1%eth0 fec0::1 ff02::1 2620:4f:8000::1
"""
PUBLIC = "1.1.1.1 8.8.8.8 100.63.255.255 100.128.0.1 172.15.255.255 172.32.0.1 192.0.1.1 2606:4700::1111 2a00:1450::1"


@pytest.mark.parametrize("address", INTERNAL.split())
def test_an_internal_address_is_not_public(address: str) -> None:
    assert not is_public(ip_address(address))


@pytest.mark.parametrize("address", PUBLIC.split())
def test_an_internet_address_is_public(address: str) -> None:
    assert is_public(ip_address(address))


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("file:///etc/passwd", "scheme 'file'"),
        ("gopher://example.org/", "scheme 'gopher'"),
        ("//example.org/", "scheme ''"),
        ("http://user@example.org/", "user info"),
        ("http://user:pass@127.0.0.1/", "user info"),
        ("http://example.org\\@127.0.0.1/", "user info"),
        ("http://example.org\\.evil/", "escaped"),
        ("http://2130706433/", "neither a name nor an address"),
        ("http://0x7f000001/", "neither a name nor an address"),
        ("http://0x7f.1/", "neither a name nor an address"),
        ("http://127.1/", "neither a name nor an address"),
        ("http://0177.0.0.1/", "neither a name nor an address"),
        ("http://127.0.0.1.0x1/", "neither a name nor an address"),
        ("http://[fe80::1%25eth0]/", "neither a name nor an address"),
        ("http://[::1/", "cannot be read"),
        ("http:///path", "neither a name nor an address"),
        ("http://exa mple.org/", "escaped"),
        ("http://example.org:99999/", "cannot be read"),
        ("http://.example.org/", "neither a name nor an address"),
        ("http://a..b/", "neither a name nor an address"),
        ("http://ｅxample.org/", "escaped"),
    ],
)
def test_a_misleading_url_is_refused(url: str, why: str) -> None:
    with pytest.raises(Refused, match=why):
        parse(url)


@pytest.mark.parametrize(
    ("url", "host", "port", "path", "authority"),
    [
        ("http://Example.ORG", "example.org", 80, "/", "example.org"),
        ("https://example.org.:8443/a/b?c=d#e", "example.org", 8443, "/a/b?c=d", "example.org:8443"),
        ("http://localhost./x", "localhost", 80, "/x", "localhost"),
        ("https://[2606:4700::1111]/", "2606:4700::1111", 443, "/", "[2606:4700::1111]"),
        ("http://10.0.0.1:80/", "10.0.0.1", 80, "/", "10.0.0.1"),
    ],
)
def test_a_plain_url_is_parsed(url: str, host: str, port: int, path: str, authority: str) -> None:
    target = parse(url)
    assert (target.host, target.port, target.path, target.authority) == (host, port, path, authority)


LIST = allow_list(["hooks.example.org", "*.shop.example.org", "10.1.0.0/16", "::1", "Example.NET."])


@pytest.mark.parametrize(
    "host", ["hooks.example.org", "HOOKS.example.org.", "a.shop.example.org", "10.1.2.3", "[::1]", "example.net"]
)
def test_hosts_on_the_list_may_be_called(host: str) -> None:
    LIST.check_host(parse(f"http://{host}/"))


@pytest.mark.parametrize(
    "host",
    ["example.org", "xhooks.example.org", "a.hooks.example.org", "shop.example.org", "xshop.example.org", "10.2.0.1",
     "8.8.8.8", "[::2]", "127.0.0.1", "localhost.", "hooks.example.org.evil.net"],
)  # fmt: skip
def test_other_hosts_may_not(host: str) -> None:
    with pytest.raises(Refused, match="is not on the allow-list"):
        LIST.check_host(parse(f"http://{host}/"))


def test_an_empty_list_allows_nothing() -> None:
    with pytest.raises(Refused):
        AllowList().check_host(parse("http://example.org/"))


def test_a_star_allows_names_and_no_address() -> None:
    anyone = allow_list(["*"])
    anyone.check_host(parse("http://whatever.example/"))
    anyone.check_address("whatever.example", ip_address("8.8.8.8"), 443)
    with pytest.raises(Refused, match="8.8.8.8 is not on the allow-list"):
        anyone.check_host(parse("http://8.8.8.8/"))
    with pytest.raises(Refused, match="whatever.example is at 127.0.0.1, which is not public"):
        anyone.check_address("whatever.example", ip_address("127.0.0.1"), 443)


def test_a_network_allows_internal_addresses_of_listed_names() -> None:
    LIST.check_address("hooks.example.org", ip_address("10.1.2.3"), 443)
    with pytest.raises(Refused, match="10.2.2.3, which is not public"):
        LIST.check_address("hooks.example.org", ip_address("10.2.2.3"), 443)
    with pytest.raises(Refused):  # another route to the same host is another address
        LIST.check_address("hooks.example.org", ip_address("::ffff:10.1.2.3"), 443)


@pytest.mark.parametrize(
    "entry",
    [
        "",
        " ",
        "http://example.org",
        "example.org:0",
        "example.org:65536",
        "example.org:",
        "a:b:80",
        "a b",
        "**",
        "*.",
        "10.1.0.1/16",
        "1.2.3",
        "a/b",
        "a@b",
    ],
)
def test_a_bad_host_in_the_allow_list_is_refused(entry: str) -> None:
    with pytest.raises(penstock.BadValue, match="is not a name, address or network"):
        allow_list([entry])


PORTS = allow_list(["hooks.example.org:8443", "*.shop.example.org:443", "10.1.0.0/16:8080", "[::1]:8080", "10.2.0.1"])


@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        ("hooks.example.org:8443", True), ("hooks.example.org", False), ("hooks.example.org:443", False),
        ("a.shop.example.org:443", True), ("a.shop.example.org:80", False),
        ("10.1.2.3:8080", True), ("10.1.2.3:8081", False), ("[::1]:8080", True), ("[::1]", False),
        ("10.2.0.1:1", True), ("10.2.0.1", True),
    ],
)  # fmt: skip
def test_an_entry_with_a_port_allows_only_that_port(host: str, allowed: bool) -> None:
    target = parse(f"http://{host}/")
    if allowed:
        PORTS.check_host(target)
    else:
        with pytest.raises(Refused, match="is not on the allow-list"):
            PORTS.check_host(target)


def test_a_network_with_a_port_allows_internal_addresses_only_at_that_port() -> None:
    PORTS.check_address("hooks.example.org", ip_address("10.1.2.3"), 8080)
    with pytest.raises(Refused, match="10.1.2.3, which is not public"):
        PORTS.check_address("hooks.example.org", ip_address("10.1.2.3"), 8443)
    anyone = allow_list(["*:443"])
    anyone.check_host(parse("https://whatever.example/"))
    with pytest.raises(Refused):
        anyone.check_host(parse("http://whatever.example/"))
