// Bad networks and bad neighbours: a connection that is cut and comes back, twelve tabs at once, posts of another site, wrong hosts, a cookie at the
// API, names full of markup.
import { assert, cookies, detached, entered, expecting, gate, json, judged, link, plain, repl, run, sees, state, visitor } from "./browser.mjs";
import { createServer, connect } from "node:net";
import { createServer as httpServer } from "node:http";

const listening = server => new Promise(done => { server.unref(); server.listen(0, "127.0.0.1", () => done(server.address().port)); });

await run(async browser => {
  const context = await visitor(browser);
  const page = await entered(context);
  const at = path => new URL(path, page.url()).href;
  const origin = new URL(page.url()).origin;
  const held = gate("held");

  expecting(/status of 40[0-9]|status of 415|status of 421|ERR_CONNECTION|ERR_EMPTY|Failed to load resource|ERR_INCOMPLETE|ERR_SOCKET/);
  // Names and commands are text.
  const evil = `<img src=x onerror=alert(1)>`;
  const named = detached(`echo '${evil}'`, "--name", "evil-name", "--env", `A=${evil}`);
  await page.goto(at(`/runs/${named}`));
  await state(page, "completed");
  assert.equal(await page.locator("img").count(), 0);
  await sees(page, evil);

  // Files that a run leaves are saved, whatever they hold and are called; none of them is a page of this origin, and none is a picture that is none.
  const pixel = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";
  const script = "<script>alert(document.cookie)</script>";
  const files = detached(`echo '${script}' | tee page.html > fake.png; echo '<svg xmlns=\"http://www.w3.org/2000/svg\">${script}</svg>' > picture.svg; echo ${pixel} | base64 -d > real.png`, "--artifact", "*.*");
  await page.goto(at(`/runs/${files}/files`));
  while (!(await page.getByText("real.png").count())) await page.reload();
  const saved = {};
  for (const name of ["page.html", "picture.svg", "fake.png"]) {
    const link = page.locator("a[download]", { hasText: name });
    saved[name] = at(await link.getAttribute("href"));
    const [download] = await Promise.all([page.waitForEvent("download"), link.click()]);
    assert.equal(download.suggestedFilename(), name);
    const [again] = await Promise.all([page.waitForEvent("download"), page.goto(saved[name]).catch(() => {})]);
    await again.cancel();
  }
  await page.goto(at(`/runs/${files}/files`));
  const seen = page.locator("img[alt='real.png']");
  await seen.waitFor();
  assert.ok(await seen.evaluate(it => it.decode().then(() => it.naturalWidth === 1)), "a real picture is shown");
  const mine = await cookies(page);
  for (const name of ["page.html", "picture.svg", "fake.png"]) {
    const preview = await plain(`${saved[name]}/preview`, { headers: { cookie: mine } });
    assert.equal(preview.status, 415, name);
    assert.ok(!preview.text.includes("alert("), name);
  }

  // A form of another site, opened in the same browser: nothing happens.
  const waits = detached(held.wait, "--name", "victim");
  await page.goto(at(`/runs/${waits}`));
  await state(page, "running");
  let stolen = "nothing was asked";
  // No script reads the cookie.
  assert.equal(await page.evaluate(() => document.cookie), "");
  const attack = `<form method=post action="${origin}/runs/${waits}/cancel"><input name=csrf value=x><button>go</button></form>`;
  const elsewhere = httpServer((request, response) => { stolen = request.headers.cookie; response.setHeader("content-type", "text/html").end(attack); });
  const port = await listening(elsewhere);
  const foreign = await context.newPage();
  await foreign.goto(`http://127.0.0.1:${port}/`);
  const [answer] = await Promise.all([foreign.waitForNavigation(), foreign.getByText("go").click()]);
  assert.equal(answer.status(), 403);
  assert.deepEqual(await judged(foreign), []);
  // Another server of this machine sees no cookie of the pages under a name of its own.
  assert.equal(stolen, undefined);
  const cookie = await cookies(page);
  await foreign.goto(`http://elsewhere.localhost:${port}/`);
  assert.equal(stolen, undefined);
  // Cookies know no ports, so it must not know our name: what can be known of it leads to no cookie, and no answer tells the rest. Forms from there are
  // refused, and neither the API nor runners' requests take the cookie.
  const [label, ...known] = new URL(origin).hostname.split(".");
  assert.match(label, /^[0-9a-f]{32}$/);
  await foreign.goto(`http://${known.join(".")}:${port}/`);
  assert.equal(stolen, undefined);
  for (const host of [known.join("."), "127.0.0.1", `x.${known.join(".")}`]) {
    const told = await plain(`http://127.0.0.1:${new URL(origin).port}/`, { headers: { host: `${host}:${new URL(origin).port}` } });
    assert.equal(told.status, 421, host);
    assert.ok(!JSON.stringify([told.text, told.headers]).includes(label), host);
  }
  const [near] = await Promise.all([foreign.waitForNavigation(), foreign.getByText("go").click()]);
  assert.equal(near.status(), 403);
  const socketPath = json("control", "status").socket;
  for (const [method, path] of [["GET", "/api/v1/runs"], ["POST", "/api/v1/runs"], ["GET", "/metrics"], ["POST", "/runner/v1/hello"], ["POST", "/control/v1/ui"]]) {
    for (const headers of [{ cookie }, { cookie, authorization: `Bearer ${cookie.split("=")[1]}` }]) {
      const answer = await plain(`http://localhost${path}`, { socketPath, method, headers: { ...headers, "content-type": "application/json" }, body: method === "POST" ? "{}" : undefined });
      assert.ok([401, 404].includes(answer.status), `${method} ${path}: ${answer.status}`);
    }
  }
  const post = (headers, path = `/runs/${waits}/cancel`) => plain(at(path), { method: "POST", headers: { cookie, "content-type": "application/x-www-form-urlencoded", ...headers }, body: "csrf=x" });
  for (const headers of [{}, { origin: "null" }, { origin: "http://evil.example" }, { origin, "sec-fetch-site": "cross-site" }]) {
    assert.equal((await post(headers)).status, 403, JSON.stringify(headers));
  }
  // A form that was sent is sent again, by the same session and, when that is over, by nobody.
  const again = await visitor(browser);
  const other = await entered(again);
  const twice = detached("true", "--name", "twice");
  await other.goto(at(`/runs/${twice}`));
  await state(other, "completed");
  const csrf = await other.locator("#act input[name=csrf]").getAttribute("value");
  const button = await other.getByRole("button", { name: "Keep 30 min longer" }).getAttribute("formaction");
  const theirs = { cookie: await cookies(other), origin, "content-type": "application/x-www-form-urlencoded" };
  const replay = () => plain(at(button), { method: "POST", headers: theirs, body: `csrf=${csrf}` });
  const until = () => json("status", twice).run.hold_until;
  const first = until();
  assert.equal((await replay()).status, 303);
  const kept = until();
  assert.ok(kept > first);
  assert.equal((await replay()).status, 303);
  assert.equal(until(), kept, "sent twice it is done once");
  await other.getByRole("button", { name: "Sign out" }).click();
  await sees(other, "repl ui");
  assert.equal((await replay()).status, 401);
  await again.close();
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

  // Twelve tabs with twelve pages follow what is in them with one connection.
  const parts = ["", "/log", "/events", "/cost", "/files", "/definition"].map(part => `/runs/${waits}${part}`);
  const lists = ["/runs", "/inbox", "/machines", "/workflows", "/spending", "/calls"];
  const [tabs, others] = await Promise.all([parts, lists].map(paths => Promise.all(paths.map(async path => {
    const tab = await context.newPage();
    await tab.goto(at(path));
    return tab;
  }))));
  for (const tab of tabs) await state(tab, "running");
  const admin = json("token", "create", "counter", "--scope", "admin").token;
  const counted = await plain("http://localhost/metrics", { socketPath, headers: { authorization: `Bearer ${admin}` } });
  assert.equal(/^remuda_page_streams (\d+)$/m.exec(counted.text)?.[1], "1", counted.text);

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
  await others[0].locator(`#${waits} .st`, { hasText: "completed" }).waitFor();
  await others[2].getByRole("region", { name: "Folders that are kept" }).getByText(waits).waitFor();
  await new Promise(done => proxy.listen(through, "127.0.0.1", done));
  proxy.unref();
  await state(far, "completed");
  assert.ok(await far.evaluate(() => window.stays), "the page was not loaded again");
});
