"""What doctor and plan learn about a machine."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from builder.plan import host, machine
from builder.plan.host import Host
from builder.spec.engine import Engine
from builder.spec.serving import Serving

AMX = frozenset[str]().union(*host.INSTRUCTION_SETS.values())


def test_instruction_sets_are_named_best_first() -> None:
    assert host.instruction_sets(AMX) == ("amx", "avx512", "avx2", "generic")
    assert host.instruction_sets(AMX - {"amx_bf16", "avx512_vnni"}) == ("avx2", "generic")
    assert host.instruction_sets(frozenset()) == ("generic",)


def test_a_container_limit_counts_when_it_is_smaller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limit = tmp_path / "memory.max"
    monkeypatch.setattr(host, "MEMORY_LIMITS", (limit, tmp_path / "none"))
    physical = host.this_host().memory
    limit.write_text("1048576\n")
    assert host.this_host().memory == 1 << 20
    limit.write_text("max\n")
    assert host.this_host().memory == physical


def test_cpu_flags_are_empty_where_the_kernel_lists_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "CPU_INFO", tmp_path / "none")
    assert host.cpu_flags() == frozenset()


def test_a_port_in_use_is_found_and_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        found = machine.port_free("127.0.0.1", "grpc", port)
    assert (found.id, found.ok) == ("port-grpc", False)
    assert str(port) in found.message and "serving.grpc_port" in str(found.mend)
    assert machine.port_free("127.0.0.1", "grpc", port).ok


def test_a_missing_or_broken_compiler_is_found(tmp_path: Path) -> None:
    broken = tmp_path / "cxx"
    broken.write_text("#!/bin/sh\necho no headers >&2\nexit 1\n")
    broken.chmod(0o755)
    assert "no C++ compiler" in machine.compiler_works(str(tmp_path / "none")).message
    assert "no headers" in machine.compiler_works(str(broken)).message
    assert machine.compiler_works("g++").ok


def test_a_pytriton_package_without_its_server_is_found(tmp_path: Path) -> None:
    assert not machine.tritonserver_found(None).ok
    assert str(tmp_path / "tritonserver" / "bin" / "tritonserver") in machine.tritonserver_found(tmp_path).message


@pytest.mark.parametrize(("version", "ok"), [("1.26.4", True), ("2.0.0", False), (None, False)])
def test_only_numpy_1_will_do(version: str | None, ok: bool) -> None:
    assert machine.numpy_is_1(version).ok is ok


@pytest.mark.parametrize(("version", "ok"), [((3, 10), False), ((3, 11), True), ((3, 12), True), ((3, 13), False)])
def test_only_supported_pythons_will_do(version: tuple[int, int], ok: bool) -> None:
    assert machine.python_supported(version).ok is ok


def test_too_little_memory_is_found(tmp_path: Path) -> None:
    assert not machine.memory_suffices(Host(memory=1 << 30, cores=1)).ok
    assert not machine.shared_memory_suffices(tmp_path / "none").ok


def test_a_gpu_is_looked_for_only_where_the_pipeline_wants_one() -> None:
    assert machine.gpu_found(24 << 30).ok and not machine.gpu_found(None).ok
    found = [[finding.id for finding in machine.examine(Serving(), Engine(device=device))] for device in ("cpu", "cuda")]
    assert set(found[1]) - set(found[0]) == {"gpu"}


def test_a_refusal_always_has_a_mend() -> None:
    findings = machine.examine(Serving(host="256.256.256.256"))
    assert [finding.id for finding in findings if not finding.ok][-3:] == ["port-http", "port-grpc", "port-metrics"]
    assert all(finding.mend for finding in findings if not finding.ok)
