"""SARIF 2.1.0, which code scanning reads: a rule for each law, a result for each broken one at the place to blame."""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path

from kvlatch.commands.annotations import in_repository
from kvlatch.reference.laws import SAYS, Broken, Judgement, NotJudged
from kvlatch.spec.properties import BY_NAME

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def write(path: Path, command: str, subject: str, judgements: tuple[Judgement, ...]) -> None:
    """Write the answers about one subject as one run; what was not judged is a notification, so that it is not lost."""
    laws = list(dict.fromkeys(one.law for one in judgements))
    driver = {"name": "kvlatch", "version": version("kvlatch"), "rules": [_rule(law) for law in laws]}
    run = {
        "tool": {"driver": driver},
        "automationDetails": {"id": f"{command}/{subject}/"},
        "results": [
            _result(one, answer, laws.index(one.law)) for one in judgements if isinstance(answer := one.answer, Broken)
        ],
        "invocations": [
            {
                "executionSuccessful": True,
                "toolExecutionNotifications": [
                    {
                        "level": "note",
                        "message": {"text": f"{one.name} was not judged: {answer.why}"},
                        "associatedRule": {"id": one.law, "index": laws.index(one.law)},
                    }
                    for one in judgements
                    if isinstance(answer := one.answer, NotJudged)
                ],
            }
        ],
    }
    path.write_text(json.dumps({"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}, indent=1) + "\n", "utf-8")


def _rule(law: str) -> dict[str, object]:
    """A law as code scanning explains it: its sentence, and public reports of the same kind."""
    reports = BY_NAME[law].reports if law in BY_NAME else ()
    said = SAYS[law] + (f" Public reports of the same kind: {', '.join(reports)}." if reports else "")
    return {"id": law, "name": law, "shortDescription": {"text": SAYS[law]}, "help": {"text": said}}


def _result(one: Judgement, answer: Broken, rule: int) -> dict[str, object]:
    text = "\n\n".join(filter(None, [answer.sentence, answer.text, answer.again and f"again: {answer.again}"]))
    result: dict[str, object] = {
        "ruleId": one.law,
        "ruleIndex": rule,
        "level": "error",
        "message": {"text": text},
        "partialFingerprints": {"law/v1": one.name},
    }
    file = in_repository(answer.file)
    if file is not None:
        region = {"region": {"startLine": answer.line}} if answer.line else {}
        location = {"artifactLocation": {"uri": file, "uriBaseId": "%SRCROOT%"}} | region
        result["locations"] = [{"physicalLocation": location}]
    return result
