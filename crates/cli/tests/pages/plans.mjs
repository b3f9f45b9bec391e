// Plans that scripts submit, and what stands behind them: a service that hangs up, so that the outcome of a call is not known.
import { createServer } from "node:net";
import { file, json } from "./browser.mjs";

/// The port of a service that takes each request and closes the connection.
export const hangsUp = () => new Promise(done => {
  const server = createServer(socket => { socket.on("error", () => {}); socket.once("data", () => socket.destroy()); });
  server.unref();
  server.listen(0, "127.0.0.1", () => done(server.address().port));
});

/// An approval whose input can be edited, then a call whose outcome nobody knows, then a rest.
export const market = port => file("market.repl.yml", `type: agents
name: market
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

export const submit = plan => json("run", plan, "--detach").id;
