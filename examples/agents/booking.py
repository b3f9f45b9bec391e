"""A program for the tool `booking`: reads the step's input, answers with its output. The key is the same in every try of the step: a
service that is sent it books once, however often it is asked."""

import json
import os
import sys

wanted = json.load(sys.stdin)
assert os.environ["REPL_STEP_KEY"], "the key of the step"
json.dump({"number": f"B-{wanted['seats']}"}, sys.stdout)
