"""An MCP server on standard input and output that behaves as its tests ask: it remembers a total, fails, dies, hangs, floods."""
import json
import os
import sys

total = 0


def send(message):
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def tool(name, /, **properties):
    schema = {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}
    return {"name": name, "description": "Does " + name + ".", "inputSchema": schema, "annotations": {"readOnlyHint": True}}


PAGES = {
    None: ([tool("add", n={"type": "integer"}), tool("fail")], "second"),
    "second": ([tool("env", name={"type": "string"})], None),
}


def call(name, given, meta):
    global total
    if name == "add":
        total += given["n"]
        return {"structuredContent": {"total": total, "pid": os.getpid(), "key": meta.get("idempotencyKey")}, "content": []}
    if name == "gate":  # waits until somebody writes into this FIFO
        total += 1
        with open(given["path"]) as gate:
            gate.read()
        return {"structuredContent": {"total": total}, "content": []}
    if name == "fail":
        return {"isError": True, "content": [{"type": "text", "text": "the disk is full"}]}
    if name == "env":
        return {"content": [{"type": "text", "text": os.environ.get(given["name"], "")}]}
    if name == "log":
        sys.stderr.write("working on it\n")
        sys.stderr.flush()
        return {"content": []}
    if name == "die":
        sys.stderr.write("out of cheese\n")
        sys.stderr.flush()
        os._exit(7)
    if name == "hang":
        return None
    if name == "garbage":
        sys.stdout.write("Debug: \x00\x01 {not json}\n[1, 2]\n\n")
        return {"content": []}
    if name == "flood":
        while True:
            sys.stdout.write("x" * 65536)
    if name == "big":
        return {"content": [{"type": "text", "text": "x" * 300_000}]}
    raise KeyError(name)


def answer(message):
    params = message.get("params") or {}
    if message["method"] == "initialize":
        return {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": {"name": "s", "version": "1"}}
    if message["method"] == "tools/list":
        if "--many" in sys.argv:
            return {"tools": [tool("t%d" % n) for n in range(200)]}
        if "--wordy" in sys.argv:
            return {"tools": [dict(tool("t"), description="x" * 100_000)]}
        tools, cursor = PAGES[params.get("cursor")]
        return {"tools": tools, **({"nextCursor": cursor} if cursor else {})}
    if message["method"] == "tools/call":
        return call(params["name"], params.get("arguments") or {}, params.get("_meta") or {})
    raise KeyError(message["method"])


if "--exit" in sys.argv:
    sys.exit("no licence")
for line in sys.stdin:
    message = json.loads(line)
    if "--mute" in sys.argv or "id" not in message:
        continue
    try:
        result = answer(message)
    except KeyError as unknown:
        code = -32602 if message["method"] == "tools/call" else -32601
        send({"jsonrpc": "2.0", "id": message["id"], "error": {"code": code, "message": "unknown: %s" % unknown}})
        continue
    if result is not None:
        send({"jsonrpc": "2.0", "id": message["id"], "result": result})
