"""A machine as JSON, for the page to run: its variables, its steps and its properties, every formula as data.

A formula is a list: ``["is", variable, label]``, ``["same", variable, variable]``, ``["not", f]``, ``["all", f, …]``,
``["any", f, …]``, ``["stores", variable, incoming, label or null]``. So is what a step stores: ``["label", label]``,
``["read", variable]``, ``["where", f, then, other]``, ``["merged", variable, incoming]``. Variables and labels are
numbers. ``page.js`` has the evaluator; a test holds it to ``kvlatch.spec.model.Concrete`` in every reachable state.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from kvlatch.spec.model import Action, Machine
from kvlatch.spec.terms import Enumerated, Var, assign, evaluate

Json = Any


@attrs.frozen
class _AsJson(Enumerated):
    """The algebra whose truths and values are JSON: so the page evaluates what ``spec.terms.evaluate`` walks."""

    numbers: Mapping[Var, int]

    def is_(self, var: Var, index: int) -> Json:
        return ["is", self.numbers[var], index]

    def same(self, left: Var, right: Var) -> Json:
        return ["same", self.numbers[left], self.numbers[right]]

    def not_(self, part: Json) -> Json:
        return ["not", part]

    def all_(self, parts: list[Json]) -> Json:
        return ["all", *parts]

    def any_(self, parts: list[Json]) -> Json:
        return ["any", *parts]

    def where(self, when: Json, then: Json, other: Json) -> Json:
        return ["where", when, then, other]

    def label(self, target: Var, index: int) -> Json:
        return ["label", index]

    def read(self, var: Var) -> Json:
        return ["read", self.numbers[var]]

    def merged(self, current: Var, incoming: int) -> Json:
        return ["merged", self.numbers[current], incoming]

    def stores(self, current: Var, incoming: int, stored: int | None) -> Json:
        return ["stores", self.numbers[current], incoming, stored]


def as_json(machine: Machine) -> dict[str, object]:
    """The whole machine: ``variables``, ``merge`` (stored label by current label and incoming), steps, properties."""
    algebra = _AsJson({var: number for number, var in enumerate(machine.model.variables)})
    return {
        "variables": [{"name": var.name, "labels": var.labels} for var in machine.model.variables],
        "merge": machine.merge,
        "actions": [_action(action, algebra) for action in machine.model.actions],
        "properties": [
            {
                "name": prop.name,
                "says": prop.says,
                "kind": prop.kind,
                "bad": [
                    evaluate(machine.model.claim(prop.bad, room), algebra)
                    for room in range(machine.model.instance.count("room"))
                ],
            }
            for prop in machine.protocol.properties
        ],
    }


def _action(action: Action, algebra: _AsJson) -> dict[str, object]:
    return {
        "name": action.name,
        "label": str(action),
        "thread": action.thread,
        "arguments": dict(action.arguments),
        "says": action.rule.says,
        "part": action.part,
        "fair": action.fair,
        "guard": evaluate(action.guard, algebra),
        "updates": [[algebra.numbers[var], assign(var, term, algebra)] for var, term in action.updates],
    }
