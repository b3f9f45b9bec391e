"""A planner: reads a goal as JSON, answers with a plan as JSON. Makes one agent for each word of `inputs.parts`."""

import json
import sys

asked = json.load(sys.stdin)
parts = asked["inputs"]["parts"][: asked["max_agents"]]
step = {"name": "make", "command": ["sh", "-c", 'echo "$1 for: $2"', "make", "PART", asked["goal"]]}
agents = []
for part in parts:
    argv = [part if word == "PART" else word for word in step["command"]]
    agents.append({"name": part, "tasks": [{"steps": [{"name": step["name"], "command": argv}]}]})
json.dump({"agents": agents}, sys.stdout)
