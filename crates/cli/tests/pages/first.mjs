// A first visit: nothing is there, a run is made by the form, and followed to its end. Then one from the command line, as it changes.
import { assert, cookies, detached, entered, expecting, gate, link, picture, plain, repl, run, sees, state, visitor } from "./browser.mjs";

await run(async browser => {
  const context = await visitor(browser);
  const page = await entered(context);
  assert.ok(!page.url().includes("ticket"), "the ticket is not in the address");
  await sees(page, "No runs yet");
  await picture(page, "first-visit");

  await page.getByLabel("Command", { exact: true }).fill("echo made by a form");
  await page.getByRole("button", { name: "Plan it" }).click();
  await sees(page, "What would happen");
  await page.getByRole("button", { name: "Start it" }).click();
  await page.waitForURL(/\/runs\/run_/);
  await state(page, "completed");
  await page.getByRole("link", { name: "Log", exact: true }).click();
  await sees(page, "made by a form");

  // A ticket is good once.
  const used = link();
  const first = await plain(used);
  assert.equal(first.status, 303);
  assert.equal(first.headers["referrer-policy"], "no-referrer");
  assert.equal((await plain(used)).status, 401);

  // Followed live: the list and the run change without a reload.
  const held = gate("held");
  await page.goto(new URL("/runs", page.url()).href);
  await page.evaluate(() => { window.stays = true; });
  const id = detached(`echo begun; ${held.wait}; echo goes on`, "--name", "follow-me");
  const fresh = page.getByRole("button", { name: "1 new" });
  await fresh.waitFor();
  assert.equal(await page.locator(`#${id}`).count(), 0, "it waits behind the button");
  await fresh.click();
  await page.locator(`#${id} .st`, { hasText: "running" }).waitFor();
  const watching = await context.newPage();
  await watching.goto(new URL(`/runs/${id}/log`, page.url()).href);
  await watching.locator(".log", { hasText: "begun" }).waitFor();
  await watching.evaluate(() => { window.stays = true; });
  await held.open();
  await watching.locator(".log", { hasText: "goes on" }).waitFor();
  await state(watching, "completed");
  await page.locator(`#${id} .st`, { hasText: "completed" }).waitFor();
  assert.ok(await page.evaluate(() => window.stays) && await watching.evaluate(() => window.stays), "no page was loaded again");

  // The way out: the session is over, also in other pages.
  const cookie = await cookies(page);
  expecting(/status of 401/);
  await page.getByRole("button", { name: "Sign out" }).click();
  await sees(page, "repl ui");
  assert.equal((await plain(new URL("/runs", page.url()).href, { headers: { cookie } })).status, 401);
  assert.ok(repl("ps", "--all").includes("follow-me"));
});
