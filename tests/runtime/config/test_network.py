"""Proxies and certificates that no HTTP client can use are refused by the variable's name, without its value."""

from __future__ import annotations

from pathlib import Path

import certifi
import pytest

from embedserve_runtime.config.network import check_network_environment
from embedserve_runtime.errors import ConfigError

MALFORMED = "is not the URL of a proxy"


@pytest.mark.parametrize(
    "url",
    [
        "http://proxy.example:3128",
        "https://proxy.example",
        "HTTP://proxy.example",
        "proxy.example:3128",
        "http://user:p%2Fw@proxy.example:3128/",
        "http://[fd00::1]:3128",
        "http://10.0.0.1:3128",
        "",
    ],
)
@pytest.mark.parametrize("name", ["HTTP_PROXY", "https_proxy", "ALL_PROXY"])
def test_a_proxy_that_can_be_used_is_accepted(name: str, url: str) -> None:
    check_network_environment({name: url})


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("http://user:PLANTED/x@proxy.example:3128", MALFORMED),
        ("http://user:PLANTED#x@proxy.example:3128", MALFORMED),
        ("http://user:PLANTED?x@proxy.example:3128", MALFORMED),
        ("http://user:PLANTED x@proxy.example:3128", MALFORMED),
        ("http://proxy.example:80PLANTED", MALFORMED),
        ("http://proxy.example:99999", MALFORMED),
        ("http://[PLANTED", MALFORMED),
        ("http://user:PLANTED@", MALFORMED),
        ("http://user:PLANTED@proxy\n", MALFORMED),
        (
            "socks5://user:PLANTED@proxy.example:1080",
            "a scheme that is not supported: use http:// or https://",
        ),
    ],
)
def test_a_proxy_that_cannot_be_used_is_named_and_not_quoted(url: str, problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_network_environment({"https_proxy": url})
    assert str(caught.value).startswith("https_proxy ")
    assert problem in str(caught.value)
    assert "PLANTED" not in str(caught.value)


def test_other_variables_say_nothing() -> None:
    check_network_environment({"NO_PROXY": "a b", "MY_PROXY": "::", "SSL_CERT_DIR": "/none"})


def test_a_file_of_certificates_is_read(tmp_path: Path) -> None:
    check_network_environment({"SSL_CERT_FILE": certifi.where()})
    empty = tmp_path / "empty.pem"
    empty.write_text("")
    for path, problem in (
        (tmp_path / "missing.pem", "No such file or directory"),
        (empty, "it has no certificates that can be read"),
        (tmp_path, "it has no certificates that can be read"),
    ):
        with pytest.raises(ConfigError, match=f"SSL_CERT_FILE: {path}: {problem}"):
            check_network_environment({"SSL_CERT_FILE": str(path)})
