// Two organisations at one server, each in a browser context of its own: nothing of one is seen, named or done by the other.
import { assert, cookies, detached, expecting, file, gate, json, plain, run, sees, state, visitor } from "./browser.mjs";
import { looker } from "./looking.mjs";
import { createServer } from "node:http";

const { PAGES_URL: url, PAGES_OURS: ours, PAGES_THEIRS: theirs } = process.env;

await run(async browser => {
  const login = async token => {
    const page = await (await visitor(browser)).newPage();
    await page.goto(`${url}/runs`);
    await page.getByLabel("Token").fill(token);
    await page.getByRole("button", { name: "Sign in" }).click();
    await page.waitForURL(`${url}/runs`);
    return page;
  };
  // The door is judged like what is behind it, with a refusal, on narrow and wide screens.
  const door = await (await visitor(browser)).newPage();
  expecting(/status of 401/);
  await door.goto(`${url}/login`);
  await door.getByLabel("Token").fill("not a token");
  await door.getByRole("button", { name: "Sign in" }).click();
  const refused = door.locator(".bad, .error, [role=alert]").first();
  await refused.waitFor();
  for (const width of [320, 1440]) {
    const { look, wrong } = looker(door, width);
    await look("login-refused");
    await look("login", `${url}/login`);
    assert.deepEqual(wrong, [], wrong.join("\n"));
    await door.goBack();
  }
  // The page of the API's description is one of ours too.
  for (const width of [320, 1440]) {
    const { look, wrong } = looker(door, width);
    await look("api-docs", `${url}/api/v1/docs`);
    assert.deepEqual(wrong, [], wrong.join("\n"));
  }
  const as = (token, work) => { process.env.REPL_TOKEN = token; return work(); };
  const here = await login(ours), there = await login(theirs);
  await sees(there, "No runs yet");
  const held = gate("held");
  const id = as(ours, () => detached(held.wait, "--name", "our-secret-name"));
  await here.goto(`${url}/runs/${id}`);
  await state(here, "running");

  // Their list shows their own run, live, and only that. It needs no machine.
  const plan = file("theirs.repl.yml", "type: agents\nname: their-run\nagents:\n  - {name: a, tasks: [{name: t, steps: [{name: s, wait: 10ms}]}]}\n");
  const other = as(theirs, () => json("run", plan, "--detach").id);
  await there.locator(`#${other}`).waitFor();
  assert.equal(await there.locator("tbody tr").count(), 1);
  assert.ok(!(await there.content()).includes("our-secret-name"));

  // Addresses of the other organisation lead nowhere, also to fragments, files and actions.
  expecting(/status of 404/);
  for (const path of [`/runs/${id}`, `/runs/${id}/log`, `/runs/${id}/log/raw`, `/runs/${id}/events`, `/runs/${id}/files`, `/ui/runs/${id}/head`]) {
    const answer = await there.goto(url + path);
    assert.equal(answer.status(), 404, path);
    assert.ok(!(await answer.text()).includes("our-secret-name"), path);
  }
  await there.goto(`${url}/runs`);
  const csrf = await there.locator("#act input[name=csrf]").getAttribute("value");
  const headers = { cookie: await cookies(there), origin: url, "content-type": "application/x-www-form-urlencoded" };
  const act = await plain(`${url}/runs/${id}/cancel?seen=running.1.1`, { method: "POST", headers, body: `csrf=${csrf}` });
  assert.equal(act.status, 404);
  assert.equal(as(ours, () => json("status", id).run.status), "running");

  // The stream tells them nothing about it: a region of another organisation has no version.
  const heard = await there.evaluate(async src => {
    const stream = new EventSource(`/ui/live?r=${encodeURIComponent(src)}&r=/ui/runs`);
    const all = [];
    await new Promise(done => stream.addEventListener("v", e => { all.push(e.data); done(); }));
    stream.close();
    return all;
  }, `/ui/runs/${id}/head`);
  assert.ok(heard.every(data => !data.includes(id)), heard.join());
  await held.open();
  await state(here, "completed");

  // A cookie knows no ports: another program at the host of a server gets the session's cookie if a browser is led there. The manual says so, and
  // what helps: a host name that no other program serves.
  let sent;
  const neighbour = createServer((request, response) => { if (request.url === "/") sent = request.headers.cookie; response.end("hello"); });
  const port = await new Promise(done => { neighbour.unref(); neighbour.listen(0, "127.0.0.1", () => done(neighbour.address().port)); });
  const led = await here.context().newPage();
  await led.goto(`http://${new URL(url).hostname}:${port}/`);
  assert.match(sent, /^remuda_/, "this is a limit of browsers: say so in docs/pages.md and docs/trust.md as long as it holds");
  await led.goto(`http://elsewhere.localhost:${port}/`);
  assert.equal(sent, undefined, "another name gets none");
  await led.close();

  // A token that reads sees the same pages without any button.
  const reader = await login(as(ours, () => json("token", "create", "looks", "--scope", "read").token));
  for (const width of [320, 1440]) {
    const { look, wrong } = looker(reader, width);
    for (const path of [`/runs/${id}`, "/runs", "/machines", "/inbox", "/settings"]) {
      await look(`reader${path.replaceAll("/", "-")}`, url + path);
      assert.equal(await reader.locator("main button[form=act]").count(), 0, path);
    }
    assert.deepEqual(wrong, [], wrong.join("\n"));
  }

  // A token that is revoked ends the session of the page that is open.
  await there.goto(`${url}/settings`);
  await there.locator("tr", { hasText: "yours" }).getByRole("button", { name: "Revoke" }).click();
  await there.waitForURL(/\/login/);
  await here.goto(`${url}/runs`);
  await sees(here, "our-secret-name");
});
