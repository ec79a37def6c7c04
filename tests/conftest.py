"""Shared by all tests: every report that any test produces is checked against the JSON schema."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from faultproxy.analyzer.report import document as document_module

SCHEMA = json.loads(files("faultproxy.analyzer.report").joinpath("diagnosis-v1.schema.json").read_text("utf-8"))
_VALIDATOR = Draft202012Validator(SCHEMA)


def problems(report: dict[str, Any]) -> list[str]:
    """What breaks the schema, as `path: message` lines."""
    return [f"{'/'.join(map(str, error.path)) or '(top)'}: {error.message}" for error in _VALIDATOR.iter_errors(report)]


@pytest.fixture(autouse=True)
def _every_report_is_valid(monkeypatch: pytest.MonkeyPatch) -> None:
    real = document_module.document

    def checked(*args: Any, **kwargs: Any) -> dict[str, Any]:
        report = real(*args, **kwargs)
        found = problems(report)
        assert not found, "a report breaks diagnosis-v1.schema.json:\n" + "\n".join(found)
        return report

    monkeypatch.setattr(document_module, "document", checked)


@pytest.fixture
def schema_problems() -> Any:
    """The validator as a function: report -> list of problems."""
    return problems
