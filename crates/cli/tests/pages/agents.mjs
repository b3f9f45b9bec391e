// A run of agents: its tree grows while it is watched, an approval is answered with an edited value, a ticket is resolved; a run is paused and
// resumed; a machine that is held is kept longer.
import { assert, detached, entered, gate, json, picture, run, sees, state, visitor } from "./browser.mjs";
import { hangsUp, market, submit } from "./plans.mjs";

await run(async browser => {
  const context = await visitor(browser);
  const page = await entered(context);
  const at = path => new URL(path, page.url()).href;
  const id = submit(market(await hangsUp()));
  await page.goto(at(`/runs/${id}`));
  await page.locator(".tree", { hasText: "office" }).waitFor();
  await page.evaluate(() => { window.stays = true; });
  await picture(page, "run-of-agents");

  // The approval: another page shows it, with a count in the navigation.
  const inbox = await context.newPage();
  await inbox.goto(at("/inbox"));
  await inbox.locator(".question", { hasText: "office/letters/agree" }).waitFor();
  await inbox.locator(".count[data-count='1']").waitFor();
  await inbox.getByText("Answer with a value").click();
  await inbox.getByLabel("JSON").fill('{"colour": "gr');
  await picture(inbox, "inbox");
  await inbox.getByLabel("JSON").fill('{"colour": "green"}');
  await inbox.getByRole("button", { name: "Approve with this answer" }).click();

  // The ticket: its call may have been done.
  await inbox.locator(".question", { hasText: "Ticket · office/letters/post" }).waitFor();
  await page.locator(".why").waitFor();
  await inbox.getByRole("button", { name: "It was not done" }).or(inbox.getByRole("button", { name: "Skip the step" })).first().waitFor();
  await inbox.getByRole("button", { name: "Skip the step" }).click();
  await sees(inbox, "Nothing waits for an answer");
  await state(page, "completed");
  assert.ok(await page.evaluate(() => window.stays), "the page was not loaded again");
  await page.locator("pre.json", { hasText: "green" }).first().waitFor();
  await page.locator(".tree a.twist, .tree a").first().waitFor();

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
