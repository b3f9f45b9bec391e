// Pages of things that wait for a person or went wrong, judged like the others: a run that is paused, one that asks, a ticket, a folder that is held,
// a workflow that failed, an orphan, runs in several states. The home has an orphan and a workflow that failed.
import { assert, detached, entered, json, repl, run, sees, shown, state, visitor } from "./browser.mjs";
import { looker } from "./looking.mjs";
import { hangsUp, market, submit } from "./plans.mjs";

await run(async browser => {
  const context = await visitor(browser);
  const page = await entered(context);
  const at = path => new URL(path, page.url()).href;
  const { look, wrong } = looker(page, Number(process.env.PAGES_WIDTH));

  await page.goto(at("/orphans"));
  await sees(page, process.env.PAGES_ORPHAN);
  await look("orphan");

  await page.goto(at("/workflows"));
  await page.locator("tr", { has: page.locator(".st[data-s=failed]") }).locator("a.row").click();
  await sees(page, "the provider has no room");
  await look("workflow-failed");

  const held = detached("echo 212 tests pass", "--name", "tests");
  const bad = detached("echo error: no such target; exit 2", "--name", "build");
  for (const [id, word] of [[held, "completed"], [bad, "failed"]]) {
    await page.goto(at(`/runs/${id}`));
    await state(page, word);
  }
  await look("machines-held", "/machines");
  assert.ok(await page.getByRole("region", { name: "Folders that are kept" }).count(), "a folder is held");

  const paused = detached("sleep 600", "--name", "training");
  await page.goto(at(`/runs/${paused}`));
  await state(page, "running");
  repl("pause", paused);
  await state(page, "paused");
  await look("run-paused");

  const asks = submit(market(await hangsUp()));
  while (!json("approval", "ls", "--run", asks).length) await new Promise(done => setImmediate(done));
  await page.goto(at(`/runs/${asks}`));
  await page.getByRole("link", { name: "Answer" }).waitFor();
  assert.equal(await page.locator(".why .summary").innerText(), "send them?");
  await look("run-asks");
  const busy = detached("sleep 600", "--name", "evaluation");
  await page.goto(at(`/runs/${busy}`));
  await state(page, "running");
  const waits = detached("sleep 600", "--name", "backup", "--cpu", "1");
  await page.goto(at("/runs"));
  await page.locator(`#${waits}`).waitFor();
  await shown(page, "runs");
  await page.emulateMedia({ colorScheme: "dark" });
  await shown(page, "dark");
  await page.emulateMedia({ colorScheme: "light" });
  await page.goto(at("/machines"));
  await shown(page, "machines");

  // Chosen all at once, then acted on.
  await page.goto(at("/runs"));
  assert.equal(await page.getByRole("button", { name: "Cancel" }).count(), 0, "nothing is chosen, so nothing is offered");
  await page.getByLabel("Choose all").check();
  assert.ok(await page.locator("tbody input").evaluateAll(all => all.length > 3 && all.every(it => it.checked)));
  await page.getByRole("button", { name: "Cancel" }).waitFor();
  await look("runs-chosen");
  for (const id of [paused, busy, waits]) repl("cancel", id);

  const approval = json("approval", "ls", "--run", asks)[0].id;
  repl("approval", "approve", approval, "--answer", '{"colour": "red"}');
  await page.goto(at("/inbox"));
  // It may have come after the page, which then shows none until one is chosen.
  await page.locator(".letters a", { hasText: "office/letters/post" }).click();
  await page.locator(".question", { hasText: "Ticket · office/letters/post" }).waitFor();
  await look("inbox-ticket");
  await look("inbox-answered", `/inbox?open=${approval}`);
  await page.goto(at("/inbox"));
  await page.locator(".letters a", { hasText: "office/letters/post" }).click();
  await page.locator(".question", { hasText: "Ticket · office/letters/post" }).waitFor();
  await page.goto(at(await page.locator(".question a[href*='/steps/']").first().getAttribute("href")));
  await page.locator(".question").waitFor();
  await look("step-ticket");
  repl("cancel", asks);

  // What was done is said on the page that is reached after it.
  await page.goto(at(`/runs/${held}`));
  await page.getByRole("button", { name: "Release" }).click();
  await page.locator("p.said").waitFor();
  await look("said");
  assert.deepEqual(wrong, [], wrong.join("\n"));
});
