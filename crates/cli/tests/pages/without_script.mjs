// Script switched off: every page is read, and acted on, by reloading.
import { assert, detached, entered, gate, json, run, sees, visitor } from "./browser.mjs";
import { hangsUp, market, submit } from "./plans.mjs";

await run(async browser => {
  const context = await visitor(browser, { javaScriptEnabled: false });
  const page = await entered(context);
  const at = path => new URL(path, page.url()).href;
  await page.getByLabel("Command").fill("echo without script");
  await page.getByRole("button", { name: "Plan it" }).click();
  await page.getByRole("button", { name: "Start it" }).click();
  await page.waitForURL(/\/runs\/run_/);
  const made = page.url();
  const until = async word => { while (!(await page.locator(".title .st").first().innerText()).includes(word)) await page.reload(); };
  await until("completed");
  for (const [part, text] of [["log", "without script"], ["events", "completed"], ["cost", "Cost"], ["files", "Files"]]) {
    await page.goto(`${made}/${part}`);
    await sees(page, text);
  }
  await page.goto(made);
  await page.getByRole("button", { name: "Keep 30 min longer" }).click();
  await page.waitForURL(made);

  await page.goto(at("/runs?show=completed"));
  await page.locator("table .row").first().waitFor();

  const id = submit(market(await hangsUp()));
  await page.goto(at("/inbox"));
  while (!(await page.locator(".question").count())) await page.reload();
  await page.getByText("Answer with a value").click();
  await page.getByLabel("JSON").fill('{"colour": "blue"}');
  await page.getByRole("button", { name: "Approve with this answer" }).click();
  while (!(await page.getByText("Ticket · office/letters/post").count())) await page.goto(at("/inbox"));
  await page.getByRole("button", { name: "Skip the step" }).click();
  await page.goto(at(`/runs/${id}`));
  await until("completed");
  await page.locator("pre.json", { hasText: "blue" }).first().waitFor();

  const held = gate("held");
  const slow = detached(held.wait);
  await page.goto(at(`/runs/${slow}`));
  await until("running");
  await page.getByRole("button", { name: "Cancel" }).first().click();
  await until("cancelled");
});
