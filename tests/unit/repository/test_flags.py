"""What is in force, and the file and history that keep it: whole after crashes, races and hand edits."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builder.errors import FlagError, RepositoryError
from builder.repository import flag_history, flag_store
from builder.repository.flag_store import FlagStore
from builder.repository.flag_watch import FlagWatch
from builder.repository.flags import FLAGS, Flags, parse

TENANTS = ("search", "support")
SETTINGS = st.tuples(st.sampled_from(FLAGS), st.sampled_from([True, False, None]), st.sampled_from([None, *TENANTS]))
STEPS = st.lists(SETTINGS, max_size=8)


def made(steps: list[tuple[str, bool | None, str | None]]) -> Flags:
    flags = Flags()
    for step in steps:
        flags = flags.set(*step)
    return flags


@pytest.fixture
def store(tmp_path: Path) -> FlagStore:
    (tmp_path / "p_decode").mkdir()
    return FlagStore(tmp_path, "p")


@given(STEPS)
def test_flags_are_what_their_file_says(steps: list[tuple[str, bool | None, str | None]]) -> None:
    flags = made(steps)
    assert parse(flags.to_text(), "p.json") == flags


@given(STEPS, st.sampled_from([None, *TENANTS]))
def test_the_kill_switch_beats_everything(steps: list[tuple[str, bool | None, str | None]], tenant: str | None) -> None:
    switches = made(steps).set("all", False).switches()
    assert not any(switches.speculation_for(name) or switches.prefix_cache_for(name) for name in (*TENANTS, "other"))
    own = made(steps).set("all", False, "search").switches()
    assert not own.speculation_for("search") and not own.prefix_cache_for("search")


@given(STEPS)
def test_the_engine_is_told_what_get_shows(steps: list[tuple[str, bool | None, str | None]]) -> None:
    flags = made(steps)
    for tenant in (*TENANTS, "other"):
        assert flags.switches().speculation_for(tenant) == flags.in_force("speculation", tenant)[0]
        assert flags.switches().prefix_cache_for(tenant) == flags.in_force("prefix_cache", tenant)[0]
        assert flags.switches().early_exit_for(tenant) == flags.in_force("early_exit", tenant)[0]


def test_a_tenants_own_setting_goes_before_the_pipelines() -> None:
    flags = Flags().set("speculation", False).set("speculation", True, "search")
    assert flags.in_force("speculation", "search") == (True, "set for tenant search")
    assert flags.in_force("speculation", "support") == (False, "set for the pipeline")
    assert Flags().in_force("speculation") == (True, "default")


def test_the_last_setting_of_a_tenant_takes_the_tenant_away() -> None:
    assert Flags().set("all", False, "search").set("all", None, "search") == Flags()


def test_a_missing_file_means_that_nothing_is_set(store: FlagStore) -> None:
    assert store.read() == Flags()
    assert store.history() == []


def test_a_change_is_kept_with_who_when_and_why(store: FlagStore) -> None:
    store.set({"speculation": False}, "a test")
    store.set({"speculation": None, "all": False}, "another", "search")
    first, second = store.history()
    assert (first.flag, first.tenant, first.old, first.new, first.why) == ("speculation", None, "default", "off", "a test")
    assert (second.flag, second.tenant, second.old, second.new) == ("all", "search", "default", "off")
    assert first.when.endswith("+00:00")
    assert "@" in first.who
    assert store.read() == Flags({"speculation": False}, {"search": {"all": False}})


def test_what_was_set_so_already_is_no_change(store: FlagStore) -> None:
    assert len(store.set({"all": False}, "")) == 1
    assert store.set({"all": False}, "") == []
    assert len(store.history()) == 1


def test_replicas_of_other_users_may_read_the_flags(store: FlagStore) -> None:
    store.set({"all": False}, "")
    assert store.path.stat().st_mode & 0o777 == 0o644


def write_many(repository: Path, flag: str, count: int) -> None:
    for number in range(count):
        FlagStore(repository, "p").set({flag: bool(number % 2)}, f"{number}")


def test_concurrent_writers_lose_nothing(store: FlagStore, tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=write_many, args=(tmp_path, flag, 10)) for flag in FLAGS]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
    changes = store.history()
    assert len(changes) == 10 * len(FLAGS)
    for flag in FLAGS:
        own = [change for change in changes if change.flag == flag]
        assert [change.old for change in own[1:]] == [change.new for change in own[:-1]]
    assert store.read() == store.last_known() == Flags(dict.fromkeys(FLAGS, True))


def die_before_the_rename(repository: Path) -> None:
    flag_store.write_atomically = lambda path, text: os.kill(os.getpid(), signal.SIGKILL)
    FlagStore(repository, "p").set({"all": False}, "killed")


def test_a_writer_killed_before_the_rename_leaves_the_old_flags_and_blocks_nobody(store: FlagStore, tmp_path: Path) -> None:
    store.set({"speculation": False}, "before")
    writer = multiprocessing.get_context("fork").Process(target=die_before_the_rename, args=(tmp_path,))
    writer.start()
    writer.join(60)
    assert writer.exitcode == -signal.SIGKILL
    assert store.read() == Flags({"speculation": False})
    assert [change.why for change in store.history()] == ["before", "killed"]
    store.set({"speculation": True}, "after")
    assert store.read() == Flags({"speculation": True})


def test_a_write_that_fails_is_a_clear_error_and_changes_nothing(store: FlagStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store.set({"speculation": False}, "before")

    def full(path: Path, text: str) -> None:
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(flag_store, "write_atomically", full)
    with pytest.raises(RepositoryError, match="No space left on device"):
        store.set({"all": False}, "full disk")
    assert store.read() == Flags({"speculation": False})


def test_the_half_line_of_a_killed_writer_spoils_no_other(store: FlagStore) -> None:
    store.set({"speculation": False}, "whole")
    history = store.folder / "p.history.jsonl"
    with history.open("a") as file:
        file.write('{"when": "2026')
    store.set({"speculation": True}, "after")
    assert [change.why for change in store.history()] == ["whole", "after"]


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", '{"flags": {}}', '{"flags": {"all": "of"}, "tenants": {}}', '{"flags": {"all": []}, "tenants": {}}', "[" * 100_000],
)
def test_a_broken_file_is_an_error_and_set_restores_it_from_the_history(store: FlagStore, text: str) -> None:
    store.set({"speculation": False}, "")
    store.path.write_text(text)
    with pytest.raises(FlagError, match=r"p\.json"):
        store.read()
    store.set({"all": False}, "kill switch")
    assert store.read() == Flags({"speculation": False, "all": False})


def test_a_flag_of_a_newer_builder_does_not_break_the_file(store: FlagStore) -> None:
    store.set({"all": False}, "")
    store.path.write_text(store.path.read_text().replace('"all"', '"later": "on", "all"'))
    assert not store.read().switches().speculation


def test_a_watch_sees_every_change_once(store: FlagStore) -> None:
    watch = FlagWatch(store)
    assert watch.poll()
    assert not watch.poll()
    store.set({"speculation": False}, "")
    assert watch.poll()
    assert watch.flags == Flags({"speculation": False})
    assert not watch.poll()
    store.path.unlink()
    assert watch.poll()
    assert watch.flags == Flags()


def test_a_watch_reads_an_unchanged_file_only_once(store: FlagStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store.set({"speculation": False}, "")
    watch = FlagWatch(store)
    watch.poll()
    monkeypatch.setattr(store, "read", lambda: pytest.fail("the file was read again"))
    assert not watch.poll()


def test_a_broken_file_keeps_the_last_good_flags_and_is_told_once(store: FlagStore) -> None:
    store.set({"speculation": False}, "")
    watch = FlagWatch(store)
    watch.poll()
    text = store.path.read_text()
    store.path.write_text(text[: len(text) // 2])
    assert watch.poll()
    assert watch.broken is not None
    assert watch.flags == Flags({"speculation": False})
    assert not watch.poll()
    store.path.write_text(text)
    assert watch.poll()
    assert watch.broken is None


def test_a_repository_out_of_sight_turns_nothing_on(store: FlagStore, tmp_path: Path) -> None:
    repository = tmp_path / "mounted"
    (repository / "p_decode").mkdir(parents=True)
    store = FlagStore(repository, "p")
    store.set({"all": False}, "")
    watch = FlagWatch(store)
    watch.poll()
    repository.rename(tmp_path / "unmounted")
    watch.poll()
    assert watch.broken is not None
    assert not watch.flags.switches().speculation


def test_a_server_that_starts_beside_a_broken_file_goes_by_the_history(store: FlagStore) -> None:
    store.set({"all": False}, "")
    store.path.write_text("{")
    watch = FlagWatch(store)
    assert watch.poll()
    assert watch.broken is not None
    assert not watch.flags.switches().speculation


def test_the_history_is_one_json_object_a_line(store: FlagStore) -> None:
    store.set({"speculation": False, "all": False}, "two\nlines, Grüße")
    lines = (store.folder / "p.history.jsonl").read_text().splitlines()
    assert [set(json.loads(line)) for line in lines] == [{"when", "who", "why", "flag", "tenant", "old", "new"}] * 2


def test_a_user_without_a_name_is_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    def nameless() -> str:
        raise KeyError("uid not found")

    monkeypatch.setattr(flag_history.getpass, "getuser", nameless)
    assert flag_history.who().startswith(f"uid {os.getuid()}@")
