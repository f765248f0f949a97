"""schemathesis makes requests up from the document the gateway exports: hundreds, and all anew in each process that
collects this file.
"""

import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.checks import load_all_checks
from schemathesis.specs.openapi.checks import negative_data_rejection, positive_data_acceptance
from served_document import ANSWER_S, MODEL

from router.http.app import openapi_document

pytest_plugins = ["schemathesis.pytest.plugin"]  # no other file is to wait for its import
load_all_checks()
api = schemathesis.openapi.from_dict(openapi_document())


@api.parametrize()
@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
def test_api__generated_cases__answers_as_documented(case, served_url: str) -> None:
    # Valid by the schema is not yet acceptable: lengths depend on the model, messages on its template. And a part of a
    # form is text whatever its type should be wrong by: a file that is `true` is one of four bytes.
    of_forms = [negative_data_rejection] if case.media_type == "multipart/form-data" else []
    case.call_and_validate(base_url=served_url, excluded_checks=[positive_data_acceptance, *of_forms], timeout=ANSWER_S)


@api.include(path_regex="completions|embeddings").parametrize()
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
def test_api__generated_cases_for_a_served_model__answer_as_documented(case, served_url: str) -> None:
    if isinstance(case.body, dict) and isinstance(case.body.get("model"), str) and case.body["model"]:
        case.body["model"] = MODEL
    case.call_and_validate(base_url=served_url, excluded_checks=[positive_data_acceptance], timeout=ANSWER_S)
