// A run of agents: its steps begin and end while they are watched; its tree grows, after the input of a step was edited and approved; an approval is answered with a value, a
// ticket is resolved; a run is paused and resumed; a machine that is held is kept longer.
import { assert, detached, entered, gate, json, picture, run, sees, shown, state, visitor } from "./browser.mjs";
import { errands, gated, hangsUp, mailing, market, readers, submit } from "./plans.mjs";

await run(async browser => {
  const context = await visitor(browser);
  const page = await entered(context);
  const at = path => new URL(path, page.url()).href;
  const id = submit(market(await hangsUp()));
  await page.goto(at(`/runs/${id}`));
  await page.locator(".tree", { hasText: "office" }).waitFor();
  await page.evaluate(() => { window.stays = true; });
  await page.locator(".tree .st", { hasText: "waiting" }).waitFor();
  await shown(page, "run");

  // The step that waits is followed on its own page.
  const looked = await context.newPage();
  await looked.goto(at(await page.locator(".tree a[href*='/steps/']", { hasText: "agree" }).getAttribute("href")));
  await state(looked, "waiting");
  await looked.evaluate(() => { window.stays = true; });

  // The approval: another page shows it, with a count in the navigation.
  const inbox = await context.newPage();
  await inbox.goto(at("/inbox"));
  // A question that appears in an open page is chosen from the list: none takes the place of what is looked at.
  const opened = async path => {
    await inbox.locator(".letters a", { hasText: path }).click();
    await inbox.locator(".question p.quiet", { hasText: path }).waitFor();
  };
  await opened("office/letters/agree");
  await inbox.locator(".count[data-count='1']").waitFor();
  await inbox.getByText("Answer with a value").click();
  await inbox.getByLabel("JSON").fill('{"colour": "green"}');
  await shown(inbox, "inbox");
  await inbox.getByRole("button", { name: "Approve with this answer" }).click();

  await state(looked, "completed");
  await looked.locator("pre.json", { hasText: "green" }).first().waitFor();
  assert.ok(await looked.evaluate(() => window.stays), "the step's page was not loaded again");

  // The ticket: its call may have been done.
  await opened("office/letters/post");
  await sees(inbox, "Ticket · office/letters/post");
  await page.locator(".why").waitFor();
  await inbox.getByRole("button", { name: "It was not done" }).or(inbox.getByRole("button", { name: "Skip the step" })).first().waitFor();
  await inbox.getByRole("button", { name: "Skip the step" }).click();
  await sees(inbox, "Nothing waits for an answer");
  await state(page, "completed");
  assert.ok(await page.evaluate(() => window.stays), "the page was not loaded again");
  await page.locator("pre.json", { hasText: "green" }).first().waitFor();
  await page.locator(".tree a.twist, .tree a").first().waitFor();

  // A step that must be allowed is called with the input that a person has edited, and what it answers lets the tree grow under their eyes.
  const service = await readers();
  const growing = submit(mailing(service.port));
  await page.goto(at(`/runs/${growing}`));
  await page.locator(".tree li li", { hasText: "find" }).waitFor();
  await page.evaluate(() => { window.stays = true; });
  const nodes = () => page.locator(".tree li").allInnerTexts();
  const few = await nodes();
  assert.deepEqual(service.asked, []);
  await inbox.goto(at("/inbox"));
  await opened("post/find/look");
  await inbox.getByText("Edit the input").click();
  const input = inbox.getByLabel("JSON");
  const shownInput = await input.inputValue();
  assert.ok(shownInput.includes("/none"), shownInput);
  await input.fill(shownInput.replace("/none", "/all"));
  await inbox.getByRole("button", { name: "Approve this input" }).click();
  await state(page, "completed");
  assert.deepEqual(service.asked, ["/all"], "it was called once, with the edited input");
  const many = await nodes();
  assert.ok(many.length >= few.length + 2, `${few.length} nodes before: ${many}`);
  assert.ok(["0", "1", "2"].every(n => many.some(text => text.includes(`mail[${n}]`))), many.join());
  assert.ok(await page.evaluate(() => window.stays), "the page was not loaded again");

  // Steps begin and end under their eyes, in the tree and on the page of a step, though nothing is asked and nothing else of the run changes.
  const shop = await gated();
  const errand = submit(errands(shop.port));
  await page.goto(at(`/runs/${errand}`));
  const row = (name, word) => page.locator(".tree li li li .node", { hasText: name }).locator(`.st[data-s=${word}]`).waitFor();
  await row("first", "running");
  await page.evaluate(() => { window.stays = true; });
  shop.open("/first");
  await row("first", "completed");
  await row("second", "running");
  await looked.goto(at(await page.locator(".tree a[href*='/steps/']", { hasText: "second" }).getAttribute("href")));
  await state(looked, "running");
  shop.open("/second");
  await state(looked, "completed");
  await row("third", "running");
  await state(page, "running");
  shop.open("/third");
  await state(page, "completed");
  assert.ok(await page.evaluate(() => window.stays), "the page was not loaded again");

  // Pause and resume.
  const held = gate("held");
  const slow = detached(`${held.wait}; echo done`, "--name", "slow");
  await page.goto(at(`/runs/${slow}`));
  await state(page, "running");
  await page.getByRole("button", { name: "Pause" }).click();
  await state(page, "paused");
  await picture(page, "paused");
  await page.getByRole("button", { name: "Resume" }).click();
  await state(page, "running");
  await held.open();
  await state(page, "completed");

  // The machine is held for a while after the end, and longer if a person wants that.
  const until = () => json("status", slow).run.hold_until;
  const before = until();
  await page.getByRole("button", { name: "Keep 30 min longer" }).click();
  await page.waitForLoadState();
  assert.ok(until() > before, `${until()} is not later than ${before}`);
});
