"""What schemathesis cannot know about this API from its description. Loaded by scripts/api."""

import itertools
import os
import re

import schemathesis

# The token that the requests are sent with: revoking it would end the test, not find anything.
OWN_TOKEN = os.environ["API_OWN_TOKEN"]
NUMBERS = itertools.count()


@schemathesis.hook
def before_call(context, case, kwargs):
    path = case.operation.path
    if path.endswith("/logs") and isinstance(case.query, dict) and case.query.get("follow") in (None, True, "true"):
        # The log of a run that never ends is a stream that never ends.
        case.query["follow"] = "false"
    if case.method == "DELETE" and path.endswith("/tokens/{id}") and case.path_parameters.get("id") == OWN_TOKEN:
        case.path_parameters["id"] = "tok_zzzzzz"
    if case.method == "POST":
        use_the_key_once(case)
    if path.endswith("/steps/poll") and isinstance(case.body, dict) and is_meant_well(case):
        case.body["wait_ms"] = 0  # nothing is ever offered
    if case.method == "POST" and path.endswith("/runs") and isinstance(case.body, dict):
        if is_meant_well(case):
            say_what_a_type_takes(case.body)
            if isinstance(case.query, dict) and case.query.get("wait"):
                case.query["wait"] = "1ms"  # no worker ends these runs
        name_what_is_there(case.body)


def is_meant_well(case):
    """A case that the description allows, not one that breaks it on purpose."""
    mode = getattr(getattr(case.meta, "generation", None), "mode", "")
    return str(getattr(mode, "value", mode)).lower().endswith("positive")


def say_what_a_type_takes(body):
    """Which fields go with which type, and what a plan means, is more than the description says."""
    if body.get("type") == "agents":
        kept = {field: body[field] for field in ("name", "start", "dry_run") if field in body}
        body.clear()
        plan = {"type": "agents", "agents": [{"tasks": [{"steps": [{"wait": "1s"}]}]}]}
        body.update(kept, type="agents", plan=plan)
    elif body.get("type") == "external":
        kept = {field: body[field] for field in ("name", "start") if field in body}
        body.clear()
        body.update(kept, type="external")
    else:
        body.pop("plan", None)


def use_the_key_once(case):
    """Under a key that was used before, whatever is sent is refused for the key alone. Cases about a header stay as they are."""
    about = getattr(getattr(case.meta, "phase", None), "data", None)
    if str(getattr(about, "parameter_location", "")).lower().endswith("header"):
        return
    key = (case.headers or {}).get("Idempotency-Key")
    if isinstance(key, str) and re.fullmatch(r"[ -~]{1,255}", key):
        case.headers["Idempotency-Key"] = f"{next(NUMBERS)}-{key}"[:255].strip()


def name_what_is_there(body):
    """Providers, secrets and files must exist, which no description can say. What is not even well-formed stays as it is."""
    for field in ("provider", "region"):
        if isinstance(body.get(field), str):
            del body[field]
    secrets = body.get("secrets")
    if isinstance(secrets, list) and all(is_text(name, r"[A-Za-z_][A-Za-z0-9_]*") for name in secrets):
        del body["secrets"]
    if is_stored(body.get("files"), "tree", {"files", "bytes"}):
        del body["files"]
    if is_stored(body.get("stdin"), "hash", {"size"}):
        del body["stdin"]


def is_stored(value, name, counts):
    """What was sent before, named by its hash, with some numbers."""
    if not isinstance(value, dict) or not {name} <= set(value) <= {name} | counts:
        return False
    numbers = all(type(value[field]) is int and value[field] >= 0 for field in counts & set(value))
    return numbers and is_text(value[name], r"[0-9a-f]{64}")


def is_text(value, shape):
    return isinstance(value, str) and re.fullmatch(shape, value) is not None
