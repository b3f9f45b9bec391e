#!/usr/bin/env python3
"""A scripted server of models, for examples and tests that must not need the network.

    python3 model_server.py [--script FILE] [--port PORT] [--log FILE]

It answers `POST /v1/chat/completions` as OpenAI's server does, streamed if it is asked to stream. It listens on 127.0.0.1 only. Its first
line of output is its address, e.g. `http://127.0.0.1:41234/v1`, which is the `base_url` of the settings or `OPENAI_BASE_URL`. It ends
when its standard input does or when it gets a signal. It needs nothing but Python 3.8.

The same requests get the same answers. A conversation is named by the first word of its first user message, and its turn is the number
of answers of the model in it plus one, so the server keeps nothing but a count of how often each turn was asked for.

The script is a JSON object: for each conversation a list of turns, for each turn one reply or a list of them. Of a list, the first reply
answers the first request for this turn, the second the second, and the last all others. Replies:

    {"text": "Hello"}                                          an answer
    {"json": {"summary": "…"}}                                 a structured answer
    {"calls": [{"name": "search", "arguments": {"q": "x"}}]}   calls of tools; `arguments` may also be a text
    {"status": 429, "retry_after": 1, "body": "…"}             an error of the server
    {"html": true}                                             a page instead of an answer
    {"cut": true}                                              an answer that ends in the middle
    {"hang": true}                                             no answer at all

`"usage": false` in an answer leaves out what it used, `"usage": [INPUT, OUTPUT]` says these numbers of tokens. Conversations that the
script does not have are answered with `echo: ` and the first user message. With `--log` each request is written to FILE as a line
`{"conversation", "turn", "request"}` before it is answered.
"""

import argparse
import json
import os
import socket
import struct
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

# Characters of a streamed answer, and of the arguments of a call, that are sent at once.
PIECE = 7
# Tokens of an answer that says nothing else.
USAGE = [100, 20]


class Script:
    """What is answered to which request, and how often each turn was asked for."""

    def __init__(self, turns, log):
        self.turns, self.log = turns, log
        self.lock, self.asked = threading.Lock(), {}

    def reply(self, request):
        messages = request.get("messages", [])
        prompt = next((text(m) for m in messages if m.get("role") == "user"), "")
        conversation = (prompt.split() or [""])[0]
        turn = 1 + sum(1 for m in messages if m.get("role") == "assistant")
        with self.lock:
            count = self.asked[(conversation, turn)] = self.asked.get((conversation, turn), 0) + 1
            if self.log:
                line = {"conversation": conversation, "turn": turn, "request": request}
                self.log.write(json.dumps(line) + "\n")
                self.log.flush()
        if conversation not in self.turns:
            return {"text": "echo: " + prompt}
        turns = self.turns[conversation]
        if turn > len(turns):
            return {"status": 400, "body": f"the script has no turn {turn} of `{conversation}`"}
        replies = turns[turn - 1]
        if not isinstance(replies, list):
            replies = [replies]
        return replies[min(count, len(replies)) - 1]


def text(message):
    content = message.get("content")
    return content if isinstance(content, str) else json.dumps(content)


def pieces(whole):
    return [whole[at : at + PIECE] for at in range(0, len(whole), PIECE)]


def content(reply):
    return json.dumps(reply["json"]) if "json" in reply else reply.get("text", "")


def arguments(call):
    given = call.get("arguments", {})
    return given if isinstance(given, str) else json.dumps(given)


def parts(reply):
    """The deltas of an answer, and how it ends."""
    if "calls" in reply:
        deltas = []
        for index, call in enumerate(reply["calls"]):
            first = {"name": call["name"], "arguments": ""}
            deltas.append({"tool_calls": [{"index": index, "id": f"call-{index}", "type": "function", "function": first}]})
            for piece in pieces(arguments(call)):
                deltas.append({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
        return deltas, "tool_calls"
    return [{"content": piece} for piece in pieces(content(reply))], "stop"


def message(reply):
    """The same answer in one piece."""
    if "calls" not in reply:
        return {"role": "assistant", "content": content(reply)}
    calls = []
    for index, call in enumerate(reply["calls"]):
        calls.append({"id": f"call-{index}", "type": "function", "function": {"name": call["name"], "arguments": arguments(call)}})
    return {"role": "assistant", "content": None, "tool_calls": calls}


def usage(reply):
    used = reply.get("usage", USAGE)
    if used is False:
        return None
    return {"prompt_tokens": used[0], "completion_tokens": used[1], "total_tokens": used[0] + used[1]}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.0"

    def do_POST(self):
        length = int(self.headers.get("content-length", 0))
        request = json.loads(self.rfile.read(length) or b"{}")
        if not self.path.endswith("/chat/completions"):
            return self.whole(404, "application/json", '{"error": {"message": "there is only /v1/chat/completions"}}')
        reply = self.server.script.reply(request)
        if reply.get("hang"):
            self.rfile.read(1)  # until the other side goes away
        elif reply.get("html"):
            self.whole(200, "text/html", "<!doctype html><html><body>Not a model</body></html>")
        elif "status" in reply:
            error = json.dumps({"error": {"message": reply.get("body", "")}})
            self.whole(reply["status"], "application/json", error, reply.get("retry_after"))
        elif request.get("stream"):
            self.stream(reply)
        else:
            _, reason = parts(reply)
            answer = {"object": "chat.completion", "choices": [{"index": 0, "message": message(reply), "finish_reason": reason}]}
            if usage(reply):
                answer["usage"] = usage(reply)
            self.whole(200, "application/json", json.dumps(answer))

    def whole(self, status, kind, body, retry_after=None):
        body = body.encode()
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        if retry_after is not None:
            self.send_header("retry-after", str(retry_after))
        self.end_headers()
        self.wfile.write(body)

    def stream(self, reply):
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        if reply.get("cut"):
            self.event({"choices": [{"index": 0, "delta": {"content": "half of an ans"}, "finish_reason": None}]})
            # A reset instead of an end: the other side cannot take it for the end of the answer.
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            return
        deltas, reason = parts(reply)
        for delta in deltas:
            self.event({"choices": [{"index": 0, "delta": delta, "finish_reason": None}]})
        self.event({"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]})
        if usage(reply):
            self.event({"choices": [], "usage": usage(reply)})
        self.wfile.write(b"data: [DONE]\n\n")

    def event(self, data):
        self.wfile.write(b"data: " + json.dumps(data).encode() + b"\n\n")

    def log_message(self, *_):
        pass


def main():
    about = argparse.ArgumentParser(description="A scripted server of models; see the head of this file.")
    about.add_argument("--script", help="JSON: what is answered to whom")
    about.add_argument("--port", type=int, default=0, help="a free one unless given")
    about.add_argument("--log", help="requests are written here")
    asked = about.parse_args()
    turns = {}
    if asked.script:
        with open(asked.script, encoding="utf-8") as file:
            turns = json.load(file)
    log = open(asked.log, "a", encoding="utf-8") if asked.log else None
    server = ThreadingHTTPServer(("127.0.0.1", asked.port), Handler)
    server.daemon_threads = True
    server.script = Script(turns, log)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(f"http://127.0.0.1:{server.server_address[1]}/v1", flush=True)
    try:
        sys.stdin.read()
    except KeyboardInterrupt:
        pass
    os._exit(0)


if __name__ == "__main__":
    main()
