// Plans that scripts submit, and what stands behind them: a service that hangs up, so that the outcome of a call is not known.
import { createServer } from "node:net";
import { createServer as httpServer } from "node:http";
import { file, json } from "./browser.mjs";

/// The port of a service that takes each request and closes the connection.
export const hangsUp = () => new Promise(done => {
  const server = createServer(socket => { socket.on("error", () => {}); socket.once("data", () => socket.destroy()); });
  server.unref();
  server.listen(0, "127.0.0.1", () => done(server.address().port));
});

/// An approval whose input can be edited, then a call whose outcome nobody knows, then a rest.
export const market = (port, name = "market") => file(`${name}.repl.yml`, `type: agents
name: ${name}
agents:
  - name: office
    tasks:
      - name: letters
        steps:
          - {name: agree, approval: "send them?", output: {type: object, required: [colour]}}
          - {name: post, http: {method: POST, url: "http://127.0.0.1:${port}/"}}
          - {name: rest, wait: 10ms}
output: {colour: "\${{ agents.office.tasks.letters.steps.agree.output.colour }}"}
`);

/// A service that answers the request for each path when the script lets it.
export const gated = () => new Promise(done => {
  const gates = new Map();
  const gate = path => {
    if (!gates.has(path)) { const it = {}; it.passed = new Promise(open => { it.open = open; }); gates.set(path, it); }
    return gates.get(path);
  };
  const server = httpServer(async (request, response) => {
    await gate(request.url).passed;
    response.setHeader("content-type", "application/json").end("{}");
  });
  server.unref();
  server.listen(0, "127.0.0.1", () => done({ port: server.address().port, open: path => gate(path).open() }));
});

/// Requests one after the other.
export const errands = port => file("errands.repl.yml", `type: agents
name: errands
agents:
  - name: runner
    tasks:
      - name: errands
        steps:
          - {name: first, http: {url: "http://127.0.0.1:${port}/first"}}
          - {name: second, http: {url: "http://127.0.0.1:${port}/second"}}
          - {name: third, http: {url: "http://127.0.0.1:${port}/third"}}
`);

/// A service that names those who read, and the paths at which it was asked.
export const readers = () => new Promise(done => {
  const asked = [];
  const server = httpServer((request, response) => {
    asked.push(request.url);
    response.setHeader("content-type", "application/json").end(JSON.stringify({ readers: request.url === "/all" ? ["ann", "bob", "cyd"] : [] }));
  });
  server.unref();
  server.listen(0, "127.0.0.1", () => done({ port: server.address().port, asked }));
});

/// A request that a person must allow, and a task for each reader that it names.
export const mailing = port => file("mailing.repl.yml", `type: agents
name: mailing
agents:
  - name: post
    parallelism: dag
    tasks:
      - name: find
        steps:
          - {name: look, policy: ask, http: {url: "http://127.0.0.1:${port}/none"}}
      - name: mail
        depends_on: [find]
        for_each: "\${{ tasks.find.steps.look.output.body.readers }}"
        steps:
          - {name: write, wait: 10ms}
`);

/// A model that says one word, and what it was asked.
export const model = () => new Promise(done => {
  const asked = [];
  const server = httpServer((request, response) => {
    let body = "";
    request.on("data", part => { body += part; }).on("end", () => {
      asked.push(body);
      const say = it => response.write(`data: ${JSON.stringify(it)}\n\n`);
      response.setHeader("content-type", "text/event-stream");
      say({ choices: [{ index: 0, delta: { role: "assistant", content: "heard" }, finish_reason: null }] });
      say({ choices: [{ index: 0, delta: {}, finish_reason: "stop" }], usage: { prompt_tokens: 5, completion_tokens: 1 } });
      response.end("data: [DONE]\n\n");
    });
  });
  server.unref();
  server.listen(0, "127.0.0.1", () => done({ port: server.address().port, asked }));
});

/// A model that is asked when a person allows it.
export const spoken = () => file("spoken.repl.yml", `type: agents
name: spoken
agents:
  - name: clerk
    tasks:
      - name: talk
        steps:
          - {name: agree, approval: "shall it speak?"}
          - {name: answer, llm: {prompt: "say something"}}
`);

export const submit = plan => json("run", plan, "--detach").id;
