// The keyboard: every row and page is reached without a pointer; keys mean nothing in a field, with a modifier, while text is composed, or switched off.
import { assert, detached, entered, file, json, repl, run, sees, state, visitor } from "./browser.mjs";

await run(async browser => {
  const context = await visitor(browser);
  const page = await entered(context);
  const at = path => new URL(path, page.url()).href;
  const press = async (...keys) => { for (const key of keys) await page.keyboard.press(key); };
  const row = () => page.evaluate(() => document.querySelector("tr.at")?.id);
  const help = page.getByRole("dialog", { name: "Keyboard" });
  const ids = ["one", "two", "three"].map(name => detached("true", "--name", name)).reverse();
  await page.goto(at(`/runs/${ids[0]}`));
  await state(page, "completed");
  const runs = async () => { await page.goto(at("/runs")); await page.locator(`#${ids[2]}`).waitFor(); };
  await runs();

  // Tab begins at the skip link; rows follow one another, and the first and the last are the ends.
  await press("Tab");
  assert.equal(await page.evaluate(() => document.activeElement.textContent), "To the content");
  await press("Enter");
  assert.equal(await page.evaluate(() => document.activeElement.id), "main");
  const rows = [];
  for (const key of ["j", "j", "j", "j", "k", "k", "k"]) { await press(key); rows.push(await row()); }
  assert.deepEqual(rows, [0, 1, 2, 2, 1, 0, 0].map(n => ids[n]));
  assert.equal(await page.locator("tr.at").count(), 1);
  assert.equal(await page.evaluate(() => document.activeElement.closest("tr").id), ids[0], "the row has the focus");
  await press("j", "Enter");
  await page.waitForURL(at(`/runs/${ids[1]}`));

  // Every page has its letter.
  const places = await page.locator("header nav a").evaluateAll(all => all.map(it => [it.dataset.go, it.getAttribute("href")]));
  assert.equal(places.length, 8);
  for (const [key, path] of [...places, ["n", "/new"]]) {
    await press("g", key);
    await page.waitForURL(at(path));
  }

  // In a field they are letters, also in a large one and in a list of choices.
  await page.getByLabel("Command", { exact: true }).focus();
  await page.keyboard.type("grj?k/");
  assert.equal(await page.getByLabel("Command", { exact: true }).inputValue(), "grj?k/");
  assert.equal(page.url(), at("/new"));
  await runs();
  await press("/");
  await page.keyboard.type("j?gr/");
  assert.equal(await page.inputValue("#search"), "j?gr/");
  await page.getByLabel("Show").focus();
  await press("j", "?");
  assert.equal(await help.count(), 0);
  assert.equal(await row(), undefined);
  await page.getByLabel("Show").evaluate(it => it.blur());

  // With a modifier they belong to the browser; while text is composed, to what composes it.
  for (const key of ["Control+j", "Alt+j", "Meta+j", "Control+k", "Control+Shift+?"]) await press(key);
  const keydown = init => page.evaluate(init => document.body.dispatchEvent(new KeyboardEvent("keydown", { bubbles: true, ...init })), init);
  await keydown({ key: "j", isComposing: true });
  await keydown({ key: "?", isComposing: true });
  assert.equal(await row(), undefined);
  assert.equal(await help.count(), 0);
  await keydown({ key: "j" });
  assert.equal(await row(), ids[0]);
  await runs();
  await press("k");
  assert.equal(await row(), ids[2], "the last row, if none was before");

  // A letter that leads nowhere ends what `g` has begun.
  await press("g", "x", "k");
  assert.equal(await row(), ids[1]);

  // The help takes the focus, names every key, and gives the focus back; behind it no row moves.
  await press("?");
  await help.waitFor();
  assert.ok(await page.evaluate(() => document.querySelector("dialog").contains(document.activeElement)));
  const named = await help.locator("kbd").allInnerTexts();
  for (const [key] of places) assert.ok(named.includes(`g ${key}`), `g ${key}`);
  await press("k");
  assert.equal(await row(), ids[1]);
  await press("Escape");
  await help.waitFor({ state: "detached" });
  assert.equal(await page.evaluate(() => document.activeElement.closest("tr")?.id), ids[1]);
  await press("?", "?");
  await help.waitFor({ state: "detached" });

  // Switched off, they do nothing, also after a reload; the button below switches them on again.
  await press("?");
  await help.getByRole("button", { name: "Switch off" }).click();
  await help.getByRole("button", { name: "Close" }).click();
  for (const again of [false, true]) {
    if (again) await runs();
    const before = await row();
    await press("j", "?", "g", "i", "/");
    assert.equal(await row(), before);
    assert.equal(await help.count(), 0);
    assert.equal(page.url(), at("/runs"));
    assert.notEqual(await page.evaluate(() => document.activeElement.id), "search");
  }
  await page.getByRole("button", { name: "Keyboard" }).click();
  await help.getByRole("button", { name: "Switch on" }).click();
  await help.getByRole("button", { name: "Close" }).click();
  await press("j", "Enter");
  await page.waitForURL(at(`/runs/${ids[0]}`));
  await sees(page, "Overview");

  // Rows of other pages too: the tree of a run, questions, workflows, results.
  const plan = name => file(`${name}.repl.yml`, `type: agents
name: ${name}
agents:
  - {name: one, tasks: [{name: t, steps: [{name: ask, approval: "first?"}]}]}
  - {name: two, tasks: [{name: t, steps: [{name: ask, approval: "second?"}]}]}
`);
  const [asks, other] = ["asks", "other"].map(name => json("run", plan(name), "--detach").id);
  while (json("approval", "ls").length < 2) await new Promise(done => setImmediate(done));
  await page.goto(at(`/runs/${asks}`));
  await press("j", "j");
  assert.equal(await page.evaluate(() => document.activeElement.textContent), "two");
  assert.equal(await page.locator(".tree .at").count(), 1);
  repl("pause", asks);
  await page.locator(".tree .at", { hasText: "paused" }).waitFor();
  await press("Enter");
  await page.waitForURL(/agent=/);
  await page.goto(at("/inbox"));
  await press("j", "j", "Enter");
  await page.locator(".letters li:nth-child(2) a[aria-current=true]").waitFor();
  for (const id of [asks, other]) repl("cancel", id);
  const kept = json("run", "--detach", "--cache", "-c", "echo kept").id;
  await page.goto(at(`/runs/${kept}`));
  await state(page, "completed");
  await page.goto(at("/calls"));
  await page.locator(".list a.row").first().waitFor();
  for (const key of ["k", "Enter"]) await press(key);
  await page.waitForURL(/\/calls\/\w+/);
  await page.goto(at("/workflows"));
  await press("j", "Enter");
  await page.waitForURL(/\/workflows\/wfl_/);

  // Whatever has the focus shows it.
  for (const path of ["/runs", "/new", "/machines"]) {
    await page.goto(at(path));
    for (let n = 0; n < 25; n++) {
      await press("Tab");
      const bare = await page.evaluate(() => {
        const it = document.activeElement, { outlineStyle, outlineWidth } = getComputedStyle(it);
        return it.matches("html, body") || (outlineStyle !== "none" && parseFloat(outlineWidth) >= 2) ? "" : it.outerHTML.slice(0, 120);
      });
      assert.equal(bare, "", `${path}: no ring around what has the focus`);
    }
  }
});
