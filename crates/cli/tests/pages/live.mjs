// What stays while a page changes by itself: the field that a person writes in, what they have opened and selected, the rows that they look at. And what
// goes on: ages, the number in the title, the status line, and all of it in a browser without shared workers.
import { assert, detached, entered, expecting, gate, json, repl, run, state, visitor } from "./browser.mjs";
import { hangsUp, market, submit } from "./plans.mjs";

/// A page whose clock stands still until the script moves it.
async function stopped(browser) {
  const context = await visitor(browser);
  const page = await entered(context);
  await page.clock.install();
  return page;
}

await run(async browser => {
  const context = await visitor(browser);
  const page = await entered(context);
  const at = path => new URL(path, page.url()).href;
  const port = await hangsUp();

  // A card that is being filled in, while another question comes.
  const first = submit(market(port, "first"));
  await page.goto(at("/inbox"));
  await page.locator(".letters a").click();
  await page.locator(".question h2").waitFor();
  assert.equal(await page.title(), "(1) Inbox · Remuda");
  await page.getByText("Answer with a value").click();
  await page.getByLabel("JSON").fill('{"colour": ');
  await page.getByLabel("Note").pressSequentially("half a sen");
  const second = submit(market(port, "second"));
  await page.locator(".letters li").nth(1).waitFor();
  await page.locator(".count[data-count='2']").waitFor();
  await page.keyboard.type("tence");
  assert.equal(await page.getByLabel("Note").inputValue(), "half a sentence", "the field keeps its text, its focus and its caret");
  assert.equal(await page.getByLabel("JSON").inputValue(), '{"colour": ');
  assert.ok(await page.locator("details", { hasText: "Answer with a value" }).evaluate(it => it.open), "what was opened stays open");
  assert.ok(await page.locator("details", { hasText: "Exact input" }).evaluateAll(all => all.every(it => it.open)));
  await page.waitForFunction(() => document.title === "(2) Inbox · Remuda");
  await page.getByLabel("JSON").fill('{"colour": "red"}');
  await page.getByRole("button", { name: "Approve with this answer" }).click();
  await page.locator(".question", { hasText: "office/letters" }).waitFor();
  const approved = json("approval", "ls", "--all", "--run", first)[0];
  assert.equal(approved.status, "approved");
  assert.ok(JSON.stringify(json("approval", "show", approved.id)).includes("half a sentence"));

  // Text that is being selected is not pulled away: what is new waits until the selection is over.
  const slow = gate("slow");
  const id = detached(slow.wait, "--name", "slow");
  await page.goto(at(`/runs/${id}`));
  await state(page, "running");
  await page.locator("h1").evaluate(it => getSelection().selectAllChildren(it));
  const src = `/ui/runs/${id}/head`;
  const head = () => page.evaluate(src => fetch(src).then(async it => [it.headers.get("x-version"), await it.text()]), src);
  repl("pause", id);
  let [version, html] = await head();
  while (!html.includes('data-s="paused"')) [version, html] = await head();
  // The page knows of it, and what it has asked for before this it has got.
  await page.waitForFunction(([src, version]) => document.querySelector(`live-region[src="${src}"]`).wanted === version, [src, version]);
  await head();
  assert.equal(await page.locator(".title .st").innerText(), "running");
  assert.equal(await page.evaluate(() => String(getSelection()).trim()), "slow");
  await page.evaluate(() => getSelection().removeAllRanges());
  await state(page, "paused");
  repl("cancel", id);

  // A region that the server cannot give just now is asked for again, and meanwhile a line says that it may be old.
  expecting(/status of 503/);
  const ill = gate("ill");
  const asked = detached(ill.wait, "--name", "asked");
  await page.goto(at(`/runs/${asked}`));
  await state(page, "running");
  const region = `**/ui/runs/${asked}/head`;
  await page.route(region, route => route.fulfill({ status: 503 }));
  repl("pause", asked);
  await page.locator("#said", { hasText: "may be out of date" }).waitFor();
  await page.unroute(region);
  await state(page, "paused");
  await page.locator("#said", { hasText: "may be out of date" }).waitFor({ state: "detached" });
  repl("cancel", asked);

  // Pages that crashed said no goodbye: what they followed does not take the place of what is followed.
  await page.evaluate(() => {
    for (let n = 0; n < 30; n++) {
      const list = Array.from({ length: 8 }, (_, place) => `/ui/runs/run_${n}x${place}/head`);
      new SharedWorker(document.documentElement.dataset.script, "remuda").port.postMessage(list);
    }
  });
  const after = gate("after");
  const built = detached(after.wait, "--name", "built");
  await page.goto(at(`/runs/${built}`));
  await state(page, "running");

  // What another build has made loads the page anew, once: two builds behind one address would have it load for ever.
  const rebuilt = () => page.evaluate(() => { document.documentElement.dataset.build = "another"; window.stays = true; });
  await rebuilt();
  const loaded = page.waitForEvent("load");
  repl("pause", built);
  await loaded;
  await state(page, "paused");
  assert.equal(await page.evaluate(() => window.stays), undefined, "the page was loaded again");
  await rebuilt();
  repl("resume", built);
  await page.locator("#said", { hasText: "load this page again" }).waitFor();
  assert.equal(await page.evaluate(() => window.stays), true, "it was not loaded a second time");
  repl("cancel", built);

  // New runs wait behind a button, however many come, and the line below says so at most every five seconds.
  const list = await stopped(browser);
  await list.goto(at("/runs"));
  await list.locator("tbody tr").first().waitFor();
  const before = await list.locator("tbody tr").count();
  const said = () => list.locator("#said").textContent();
  const offered = count => list.getByRole("button", { name: `${count} new` }).waitFor();
  await list.clock.pauseAt(Date.now() + 60_000);
  const tick = list.locator("tbody input").first();
  await tick.check();
  await tick.focus();
  const came = [detached("true", "--name", "came-1")];
  await offered(1);
  await list.clock.runFor(1);
  assert.equal(await said(), "1 new in the list.");
  came.push(detached("true", "--name", "came-2"));
  await offered(2);
  came.push(detached("true", "--name", "came-3"));
  await offered(3);
  assert.equal(await list.locator("tbody tr").count(), before, "they are not shown");
  for (const one of came) assert.equal(await list.locator(`#${one}`).count(), 0);
  assert.ok(await tick.evaluate(it => it.checked && it === document.activeElement), "a row that was chosen stays chosen");
  await list.clock.runFor(4_900);
  assert.equal(await said(), "1 new in the list.");
  await list.clock.runFor(200);
  assert.equal(await said(), "3 new in the list.");
  await list.getByRole("button", { name: "3 new" }).click();
  assert.equal(await list.locator("tbody tr").count(), before + 3);
  assert.equal(await list.locator("tbody tr").first().getAttribute("id"), came[2], "the newest is the first");
  assert.equal(await list.locator(".fresh").count(), 0);
  assert.equal(await list.evaluate(() => document.activeElement.closest("tr")?.id), came[2], "the focus goes to the first of them");
  assert.equal(await said(), "", "nothing is said of rows that are shown");
  await list.clock.runFor(10_000);
  assert.equal(await said(), "");

  // Ages go on.
  const age = list.locator(`#${came[0]} time[data-age]`);
  const old = await age.textContent();
  assert.match(old, /^\d+ s ago$|^1 min ago$/);
  await list.clock.runFor(180_000);
  assert.match(await age.textContent(), /^[34] min ago$/);

  // So does what waits, in the sentence that says so: the page hears nothing of it.
  await list.goto(at(`/runs/${second}`));
  const waits = list.locator(".why li time[data-since]");
  const minutes = async () => parseInt(/^(\d+) min$/.exec(await waits.textContent())[1], 10);
  await list.clock.runFor(1_000);
  const sofar = await minutes();
  await list.clock.runFor(180_000);
  assert.equal(await minutes(), sofar + 3);

  // Without shared workers each page has a stream, as long as it is looked at.
  const lonely = await visitor(browser);
  await lonely.addInitScript(() => {
    delete window.SharedWorker;
    window.streams = [];
    const Stream = EventSource;
    window.EventSource = class extends Stream { constructor(url) { super(url); window.streams.push(this); } };
    window.look = away => { Object.defineProperty(document, "hidden", { configurable: true, get: () => away }); document.dispatchEvent(new Event("visibilitychange")); };
  });
  const alone = await entered(lonely);
  const open = () => alone.evaluate(() => window.streams.filter(it => it.readyState !== 2).length);
  const held = gate("held");
  const watched = detached(`${held.wait}; echo done`, "--name", "watched");
  await alone.goto(at(`/runs/${watched}`).replace(new URL(page.url()).origin, new URL(alone.url()).origin));
  await state(alone, "running");
  repl("pause", watched);
  await state(alone, "paused");
  assert.equal(await open(), 1);
  await alone.evaluate(() => window.look(true));
  await alone.waitForFunction(() => window.streams.every(it => it.readyState === 2));
  repl("resume", watched);
  await held.open();
  repl("attach", watched);
  assert.equal(await alone.locator(".title .st").innerText(), "paused", "nobody looks");
  await alone.evaluate(() => window.look(false));
  await state(alone, "completed");
  assert.equal(await open(), 1);
});
