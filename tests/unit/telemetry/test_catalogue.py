from __future__ import annotations

from builder.telemetry.catalogue import CATALOGUE


def test_names_are_unique_and_carry_the_prefix() -> None:
    names = [metric.name for metric in CATALOGUE]
    assert len(set(names)) == len(names)
    assert all(name.startswith("tandem_") for name in names)


def test_histograms_and_only_they_have_ascending_buckets() -> None:
    for metric in CATALOGUE:
        assert bool(metric.buckets) == (metric.kind == "histogram")
        assert list(metric.buckets) == sorted(set(metric.buckets))


def test_histograms_of_time_end_in_seconds() -> None:
    assert all(m.name.endswith(("_seconds", "_length")) for m in CATALOGUE if m.kind == "histogram")
