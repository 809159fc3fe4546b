"""The operator's guide: its rules and its panel ask for metrics that SGLang has."""

from __future__ import annotations

import json
import re
import zipfile
from pathlib import Path

import pytest

from kvlatch.reference.published.sglang import wheels
from kvlatch.reference.published.wheels import CannotFetch

yaml = pytest.importorskip("yaml", reason="the rules are read with PyYAML, of the extra `dev`")

DOCS = Path(__file__).parents[2] / "docs"
COLLECTOR = "sglang/srt/observability/metrics_collector.py"


def asked() -> set[str]:
    """The metrics that the rules and the panel ask for."""
    text = (DOCS / "operate.md").read_text("utf-8")
    (block,) = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    rules = [rule["expr"] for group in yaml.safe_load(block)["groups"] for rule in group["rules"]]
    panel = json.loads((DOCS / "static" / "grafana-panel.json").read_text("utf-8"))
    queries = [target["expr"] for target in panel["targets"]]
    assert len(rules) == 2
    assert len(queries) == 8
    for expression in (*rules, *queries):
        assert expression.count("(") == expression.count(")")
    return {name for one in (*rules, *queries) for name in re.findall(r"sglang:\w+", one)}


@pytest.mark.network
def test_the_metrics_are_those_of_the_newest_version() -> None:
    """Each is registered there under that name."""
    try:
        wheel = wheels.fetch(wheels.versions()[-1])
    except CannotFetch as error:
        pytest.skip(f"no wheel: {error}")
    with zipfile.ZipFile(wheel) as archive:
        source = archive.read(COLLECTOR).decode()
    assert asked() <= set(re.findall(r'name="(sglang:\w+)"', source))
