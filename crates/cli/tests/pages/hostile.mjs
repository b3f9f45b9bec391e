// Bad networks and bad neighbours: a connection that is cut and comes back, twelve tabs at once, posts of another site, wrong hosts, a cookie at the
// API, names full of markup.
import { assert, cookies, detached, entered, expecting, gate, link, plain, repl, run, sees, state, visitor } from "./browser.mjs";
import { createServer, connect } from "node:net";
import { createServer as httpServer } from "node:http";

const listening = server => new Promise(done => { server.unref(); server.listen(0, "127.0.0.1", () => done(server.address().port)); });

await run(async browser => {
  const context = await visitor(browser);
  const page = await entered(context);
  const at = path => new URL(path, page.url()).href;
  const origin = new URL(page.url()).origin;
  const held = gate("held");

  // Names and commands are text.
  const evil = `<img src=x onerror=alert(1)>`;
  const named = detached(`echo '${evil}'`, "--name", "evil-name", "--env", `A=${evil}`);
  await page.goto(at(`/runs/${named}`));
  await state(page, "completed");
  assert.equal(await page.locator("img").count(), 0);
  await sees(page, evil);

  // A form of another site, opened in the same browser: nothing happens.
  const waits = detached(held.wait, "--name", "victim");
  await page.goto(at(`/runs/${waits}`));
  await state(page, "running");
  let stolen = "nothing was asked";
  const attack = `<form method=post action="${origin}/runs/${waits}/cancel"><input name=csrf value=x><button>go</button></form>`;
  const elsewhere = httpServer((request, response) => { stolen = request.headers.cookie; response.setHeader("content-type", "text/html").end(attack); });
  const port = await listening(elsewhere);
  const foreign = await context.newPage();
  expecting(/status of 40[0-9]|status of 421|ERR_CONNECTION|ERR_EMPTY|Failed to load resource|ERR_INCOMPLETE|ERR_SOCKET/);
  await foreign.goto(`http://127.0.0.1:${port}/`);
  const [answer] = await Promise.all([foreign.waitForNavigation(), foreign.getByText("go").click()]);
  assert.equal(answer.status(), 403);
  // Another server of this machine, under its own name, sees no cookie of the pages.
  assert.equal(stolen, undefined);
  const cookie = await cookies(page);
  const post = (headers, path = `/runs/${waits}/cancel`) => plain(at(path), { method: "POST", headers: { cookie, "content-type": "application/x-www-form-urlencoded", ...headers }, body: "csrf=x" });
  for (const headers of [{}, { origin: "null" }, { origin: "http://evil.example" }, { origin, "sec-fetch-site": "cross-site" }]) {
    assert.equal((await post(headers)).status, 403, JSON.stringify(headers));
  }
  const stale = await post({ origin });
  assert.ok([400, 403].includes(stale.status), `without the form's token: ${stale.status}`);
  assert.equal((await plain(at("/runs"), { headers: { cookie, host: "evil.example" } })).status, 421);
  // The port of the pages has no API; the API takes no cookie.
  assert.equal((await plain(at("/api/v1/runs"), { headers: { cookie } })).status, 404);
  assert.equal(repl("status", waits).includes("cancelled"), false);
  const headers = (await plain(at("/runs"), { headers: { cookie } })).headers;
  assert.equal(headers["content-security-policy"], "default-src 'self'; base-uri 'none'; object-src 'none'; frame-ancestors 'none'; form-action 'self'");
  assert.equal(headers["cache-control"], "private, no-store");
  assert.equal(headers["x-content-type-options"], "nosniff");
  await foreign.close();

  // Twelve tabs follow one run with one connection.
  const tabs = await Promise.all(Array.from({ length: 12 }, async () => {
    const tab = await context.newPage();
    await tab.goto(at(`/runs/${waits}`));
    await state(tab, "running");
    return tab;
  }));

  // A proxy between browser and server that can be cut.
  const sockets = new Set();
  const target = Number(new URL(origin).port);
  const proxy = createServer(socket => {
    const behind = connect(target, "127.0.0.1");
    for (const one of [socket, behind]) { sockets.add(one); one.on("error", () => {}); one.on("close", () => sockets.delete(one)); }
    socket.pipe(behind); behind.pipe(socket);
  });
  const through = await listening(proxy);
  const cut = await visitor(browser);
  const far = await cut.newPage();
  const ticket = new URL(link());
  ticket.port = through;
  await far.goto(ticket.href);
  await far.goto(new URL(`/runs/${waits}`, far.url()).href);
  await state(far, "running");
  await far.evaluate(() => { window.stays = true; });
  proxy.close();
  for (const socket of sockets) socket.destroy();
  await held.open();
  for (const tab of tabs) await state(tab, "completed");
  await new Promise(done => proxy.listen(through, "127.0.0.1", done));
  proxy.unref();
  await state(far, "completed");
  assert.ok(await far.evaluate(() => window.stays), "the page was not loaded again");
});
