"""What is told of a pipeline that failed on another runner."""

from __future__ import annotations

import pytest
from apache_beam.metrics.cells import DistributionData, DistributionResult
from apache_beam.metrics.execution import MetricKey, MetricResult
from apache_beam.metrics.metricbase import MetricName

from ledgerbeam.ledger.model.work_time import WorkTime
from ledgerbeam.pipelines.runners.beam import _counted_set_ups, _counted_time, _last_line, _remedy

JAVA = """Pipeline failed in state FAILED: org.example.RestClientException: [Could not upload job files.
	at org.example.Submit.upload(Submit.java:86)
Caused by: java.io.IOException: Could not connect to BlobServer at address localhost/127.0.0.1:35769
	... 11 more
Caused by: java.net.ConnectException: Connection refused
	at java.base/sun.nio.ch.Net.connect0(Native Method)
	... 13 more
]"""

SPARK = """Only one SparkContext should be running in this JVM (see SPARK-2243).The other one was created at:
org.apache.spark.api.java.JavaSparkContext.<init>(JavaSparkContext.scala:58)
\tat scala.Option.foreach(Option.scala:407)
java.base/jdk.internal.reflect.NativeMethodAccessorImpl.invoke0(Native Method)
java.base/java.lang.Thread.run(Thread.java:840)
"""


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (JAVA, "RuntimeError: java.net.ConnectException: Connection refused"),
        (SPARK, f"RuntimeError: {SPARK.splitlines()[0]}"),
        ("one\ntwo\n", "RuntimeError: two"),
        ("one\n]\n", "RuntimeError: one"),
        ("Pipeline failed. State: CANCELLED, Error:\nNone", "RuntimeError: Pipeline failed. State: CANCELLED"),
        ("", "RuntimeError: "),
    ],
)
def test_an_error_is_told_by_its_cause(text: str, told: str) -> None:
    assert _last_line(RuntimeError(text)) == told


def test_spark_s_job_server_that_is_at_work_is_told_with_a_remedy() -> None:
    assert "wait for that job, or cancel it" in _remedy(RuntimeError(SPARK))
    assert _remedy(RuntimeError(JAVA)) == "--debug shows all of it"


def test_counters_that_are_not_to_be_had_change_nothing(caplog: pytest.LogCaptureFixture) -> None:
    class Result:
        def metrics(self) -> None:
            raise ConnectionError("the service is gone")

    assert _counted_set_ups(Result()).times == 0
    assert "counters were not to be had: ConnectionError: the service is gone" in caplog.text


def test_set_ups_and_times_of_all_steps_are_added_up() -> None:
    def metric(step: str, name: str, value: object) -> MetricResult:
        return MetricResult(MetricKey(step, MetricName("ledgerbeam", name)), value, value)

    set_up = DistributionResult(DistributionData(3000, 2, 1000, 2000))
    counters = [metric("one", "read_us", 1_500_000), metric("two", "read_us", 500_000), metric("one", "tasks_us", 7)]
    counters += [metric("one", "records_read", 9), metric("one", "publish_us", None)]

    class Result:
        def metrics(self) -> Result:
            return self

        def query(self, wanted: object) -> dict[str, list[MetricResult]]:
            return {"counters": counters, "distributions": [metric("one", "set_up_ms", set_up)]}

    assert _counted_set_ups(Result()) == (2, 3.0, 2.0)
    assert _counted_time(Result()) == WorkTime(0, {"read": 2.0})
