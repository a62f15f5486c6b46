"""Feature flags of a pipeline: what is set, for everybody or for a tenant, and what follows from it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from builder.errors import FlagError
from builder.runtime.switches import Switches

ALL = "all"  # the kill switch: off is plain decoding
OPTIMISATIONS = ("speculation", "early_exit", "prefix_cache")
FLAGS = (*OPTIMISATIONS, ALL)
VALUES = {"on": True, "off": False, "default": None}  # `default` takes the setting away
WORDS = {value: word for word, value in VALUES.items()}

Settings = Mapping[str, bool]  # flag -> on; what is not set is not there


@dataclass(frozen=True)
class Flags:
    """Settings of the whole pipeline and of single tenants. Nothing set means everything on.

    The kill switch `all` off beats everything, whoever set it. Else a tenant's own setting goes before the pipeline's.
    """

    pipeline: Settings = field(default_factory=dict)
    tenants: Mapping[str, Settings] = field(default_factory=dict)

    def set(self, flag: str, value: bool | None, tenant: str | None = None) -> Flags:
        """These flags with one setting changed; None takes it away."""
        before = self.pipeline if tenant is None else self.tenants.get(tenant, {})
        after = {name: on for name, on in before.items() if name != flag} | ({} if value is None else {flag: value})
        if tenant is None:
            return Flags(after, self.tenants)
        others = {name: settings for name, settings in self.tenants.items() if name != tenant}
        return Flags(self.pipeline, others | ({tenant: after} if after else {}))

    def get(self, flag: str, tenant: str | None = None) -> bool | None:
        """What is set there, None for nothing."""
        return (self.pipeline if tenant is None else self.tenants.get(tenant, {})).get(flag)

    def in_force(self, flag: str, tenant: str | None = None) -> tuple[bool, str]:
        """Whether it is on, and why."""
        scopes = [(self.pipeline, "the pipeline")]
        if tenant is not None:
            scopes.insert(0, (self.tenants.get(tenant, {}), f"tenant {tenant}"))
        for settings, name in reversed(scopes):
            if settings.get(ALL) is False:
                return False, f"kill switch of {name}"
        for settings, name in scopes:
            if flag in settings:
                return settings[flag], f"set for {name}"
        return True, "default"

    def switches(self) -> Switches:
        def tenants(flag: str) -> dict[str, bool]:
            return {tenant: self.in_force(flag, tenant)[0] for tenant in self.tenants}

        return Switches(
            self.in_force("speculation")[0],
            tenants("speculation"),
            self.in_force("prefix_cache")[0],
            tenants("prefix_cache"),
            self.in_force("early_exit")[0],
            tenants("early_exit"),
        )

    def to_text(self) -> str:
        tenants = {tenant: _to_words(settings) for tenant, settings in self.tenants.items()}
        return json.dumps({"flags": _to_words(self.pipeline), "tenants": tenants}, indent=2, sort_keys=True) + "\n"


def parse(text: str, where: str) -> Flags:
    """The flags in a file's text. FlagError when it is not what `Flags.to_text` writes.

    Names of flags are not checked: a newer `builder` may have set one that this replica does not know, and the kill
    switch must work on it all the same.
    """
    mend = "`builder flags set` writes it anew from the history"
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FlagError(f"not JSON ({error})", where=where, mend=mend) from None
    if not isinstance(data, dict) or set(data) != {"flags", "tenants"} or not isinstance(data["tenants"], dict):
        raise FlagError("not the two mappings `flags` and `tenants`", where=where, mend=mend)
    for settings in (data["flags"], *data["tenants"].values()):
        if not isinstance(settings, dict) or not all(value in ("on", "off") for value in settings.values()):
            raise FlagError("each flag must be `on` or `off`", where=where, mend=mend)
    return Flags(_from_words(data["flags"]), {tenant: _from_words(settings) for tenant, settings in data["tenants"].items()})


def _to_words(settings: Settings) -> dict[str, str]:
    return {flag: WORDS[on] for flag, on in settings.items()}


def _from_words(settings: Mapping[str, Any]) -> dict[str, bool]:
    return {flag: word == "on" for flag, word in settings.items()}
