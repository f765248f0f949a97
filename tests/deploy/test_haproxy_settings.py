import pytest

from deploy.haproxy import loopback_settings

SERVES_TEMPLATE = """frontend prometheus
    bind :9101
    mode http
frontend http_frontend
    bind {host}:8000
listen stats
  bind *:8404
  stats enable
"""


def test_settings__gateway_on_loopback__metrics_and_statistics_too() -> None:
    found = loopback_settings(SERVES_TEMPLATE.format(host="127.0.0.1"))

    assert [line.split()[1] for line in found.splitlines() if "bind" in line] == [
        "127.0.0.1:9101",
        "127.0.0.1:8000",
        "127.0.0.1:8404",
    ]


@pytest.mark.parametrize("host", ["*", "10.0.0.7"])
def test_settings__gateway_for_others__stay_as_they_are(host: str) -> None:
    text = SERVES_TEMPLATE.format(host=host)

    assert loopback_settings(text) == text
