#!/usr/bin/env python3
"""Lists the machines of a tailnet for `[features.tailscale] list`, and deletes one when a person asks for that (see docs/features.md).
Started as: tailscale.py TAILNET VERB, with the question on stdin; answers with one line of JSON. Not tried against Tailscale itself."""
import base64, json, os, sys, urllib.error, urllib.request
from datetime import datetime

tailnet, verb, ask = sys.argv[1], sys.argv[2], json.load(sys.stdin)
api = os.environ.get("TS_API_URL", "https://api.tailscale.com/api/v2")
key = base64.b64encode((os.environ["TS_API_KEY"] + ":").encode()).decode()

def answer(**it): print(json.dumps(it)); sys.exit()
def call(method, path):
    asked = urllib.request.Request(api + path, method=method, headers={"Authorization": "Basic " + key})
    try: return urllib.request.urlopen(asked, timeout=40).read()
    except urllib.error.HTTPError as error:
        if method == "DELETE" and error.code == 404: return b""
        answer(error={"kind": "auth" if error.code in (401, 403) else "internal", "what": str(error), "effect": "none"})
    except OSError as error: answer(error={"kind": "network", "what": str(error), "effect": "perhaps"})
def ms(text): return int(datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp() * 1000)

if verb == "list":
    found = []
    for it in json.loads(call("GET", f"/tailnet/{tailnet}/devices"))["devices"]:
        if it["hostname"].startswith(ask["prefix"]):
            found.append(dict(kind="tailscale_machine", name=it["hostname"], handle=it["id"], status="running", region="everywhere",
                created_at=ms(it["created"]), last_seen=ms(it["lastSeen"]), ip=(it.get("addresses") or [None])[0]))
    found.sort(key=lambda it: it["handle"])
    rest = [it for it in found if it["handle"] > (ask["after"] or "")]
    page = rest[:ask["limit"]]
    answer(listed=page, next=page[-1]["handle"] if len(rest) > len(page) else None)
if verb == "delete": call("DELETE", "/device/" + ask["handle"]); answer()
answer(error={"kind": "invalid_spec", "what": "only list and delete", "effect": "none"})
