"""Requests made from the API's own description, well-formed and not: no 5xx, and answers as described."""

import json

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.specs.openapi import checks
from serving import EOS, serving

KNOWN = [
    ("POST", "/v1/completions"),
    ("POST", "/v1/chat/completions"),
    ("POST", "/tokenize"),
    ("POST", "/detokenize"),
    ("GET", "/v1/models"),
    ("GET", "/v1/models/{model_id}"),
    ("GET", "/health"),
    ("GET", "/ready"),
    ("GET", "/metrics"),
]


@pytest.fixture(scope="module")
def described():
    with serving([ord("a"), EOS]) as served:
        yield schemathesis.openapi.from_url(f"{served.url}/openapi.json"), served


def test_every_described_operation_is_tried(described):
    schema, _ = described
    found = {(op.ok().method.upper(), op.ok().path) for op in schema.get_all_operations()}
    assert found == set(KNOWN)


@pytest.mark.parametrize(
    ("method", "path", "mode"),
    [
        *((method, path, GenerationMode.POSITIVE) for method, path in KNOWN),
        # A request without a body can hardly be wrong.
        *((method, path, GenerationMode.NEGATIVE) for method, path in KNOWN if method == "POST"),
    ],
)
def test_no_request_makes_the_server_fail(described, method, path, mode):
    schema, served = described
    operation = schema[path][method]
    tried = []

    @settings(
        deadline=None,
        derandomize=True,
        max_examples=20 if method == "POST" else 5,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(operation.as_strategy(generation_mode=mode))
    def check(case):
        if isinstance(case.body, dict) and isinstance(case.body.get("model"), str):
            case.body["model"] = "scripted"  # else nearly every one would end at an unknown model
        response = case.call()
        tried.append(response.status_code)
        case.validate_response(
            response,
            checks=[
                schemathesis.checks.not_a_server_error,
                checks.status_code_conformance,
                checks.content_type_conformance,
                checks.response_schema_conformance,
            ],
        )
        if response.status_code >= 400:
            assert json.loads(response.content)["error"]["message"]

    check()
    assert tried
    assert served.health() == 200
    assert not served.engine.has_work
