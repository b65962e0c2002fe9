"""What is told of a pipeline that failed on another runner."""

from __future__ import annotations

import pytest

from ledgerbeam.pipelines.runners.beam import _counted_set_ups, _last_line

JAVA = """Pipeline failed in state FAILED: org.example.RestClientException: [Could not upload job files.
	at org.example.Submit.upload(Submit.java:86)
Caused by: java.io.IOException: Could not connect to BlobServer at address localhost/127.0.0.1:35769
	... 11 more
Caused by: java.net.ConnectException: Connection refused
	at java.base/sun.nio.ch.Net.connect0(Native Method)
	... 13 more
]"""


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (JAVA, "RuntimeError: java.net.ConnectException: Connection refused"),
        ("one\ntwo\n", "RuntimeError: two"),
        ("one\n]\n", "RuntimeError: one"),
        ("Pipeline failed. State: CANCELLED, Error:\nNone", "RuntimeError: Pipeline failed. State: CANCELLED"),
        ("", "RuntimeError: "),
    ],
)
def test_an_error_is_told_by_its_cause(text: str, told: str) -> None:
    assert _last_line(RuntimeError(text)) == told


def test_counters_that_are_not_to_be_had_change_nothing(caplog: pytest.LogCaptureFixture) -> None:
    class Result:
        def metrics(self) -> None:
            raise ConnectionError("the service is gone")

    assert _counted_set_ups(Result()).times == 0
    assert "counters were not to be had: ConnectionError: the service is gone" in caplog.text
