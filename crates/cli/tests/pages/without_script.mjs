// Script switched off: every page is read, and acted on, by reloading.
import { assert, detached, entered, expecting, file, gate, repl, run, sees, settings, visitor } from "./browser.mjs";
import { hangsUp, market, model, spoken, submit } from "./plans.mjs";
import { resolve } from "node:path";

await run(async browser => {
  // One machine: what comes second waits, and can be cancelled before it has begun. Another provider takes its time.
  const heard = await model(), provider = gate("provider");
  const program = file("slow.sh", `case $1 in spawn) [ -p ${resolve("provider")} ] && { ${provider.wait}; rm ${resolve("provider")}; }; echo '{"error": {"kind": "capacity", "what": "full", "effect": "none"}}';; list) echo '{"listed": [], "next": null}';; *) echo '{"handle": null}';; esac\n`);
  settings(`[tools]
allow = ["127.0.0.1"]
[providers.local]
max_instances = 1
[providers.slow]
kind = "exec"
exec = ["/bin/sh", "${resolve(program)}"]
reach = "host"
bills = false
[llm.default]
base_url = "http://127.0.0.1:${heard.port}/v1"
[llm.default.models.one-word]
context = 16000
`);
  const context = await visitor(browser, { javaScriptEnabled: false });
  const page = await entered(context);
  const at = path => new URL(path, page.url()).href;
  await page.getByLabel("Command", { exact: true }).fill("echo without script");
  await page.getByRole("button", { name: "Plan it" }).click();
  await page.getByRole("button", { name: "Start it" }).click();
  await page.waitForURL(/\/runs\/run_/);
  const made = page.url();
  const until = async word => { while (!(await page.locator(".title .st").first().innerText()).includes(word)) await page.reload(); };
  await until("completed");
  // What only the content of each part has: the labels of the tabs are on all of them.
  for (const [part, text] of [["log", "without script"], ["events", "run.completed"], ["cost", "Machine time"], ["files", "This run kept no files."], ["definition", "echo without script"]]) {
    await page.goto(`${made}/${part}`);
    await sees(page, text);
  }
  await page.goto(`${made}/cost`);
  await page.getByRole("region", { name: "Attempts" }).locator("tbody tr", { hasText: "completed" }).waitFor();
  await page.goto(made);
  await page.getByRole("button", { name: "Keep 30 min longer" }).click();
  await page.waitForURL(made);
  await sees(page, "Kept until");

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

  // A step is read, with its question; an agent is spoken to before its model is asked, and the model hears it.
  const talk = submit(spoken());
  await page.goto(at(`/runs/${talk}`));
  while (!(await page.locator(".tree .st", { hasText: "waiting" }).count())) await page.reload();
  await page.getByText("Say something to an agent").click();
  await page.getByLabel("Text, read by its next turn").fill("mind the gap");
  await page.getByRole("button", { name: "Send" }).click();
  await page.waitForURL(at(`/runs/${talk}`));
  await sees(page, "Sent.");
  await page.locator("a[href*='/steps/']", { hasText: "agree" }).click();
  await sees(page, "Input");
  await page.getByRole("button", { name: "Approve", exact: true }).click();
  await page.waitForURL(at("/inbox"));
  await page.goto(at(`/runs/${talk}`));
  await until("completed");
  assert.equal(heard.asked.length, 1);
  assert.ok(heard.asked[0].includes("mind the gap"), heard.asked[0]);

  expecting(/status of 400/);
  // A file is pasted: YAML, as `repl run` reads it.
  await page.goto(at("/new"));
  await page.getByText("A run file instead").click();
  await page.getByLabel("YAML").fill("type: task\ncommand: [echo from a file]\n");
  await page.getByRole("button", { name: "Show what would happen" }).click();
  await sees(page, "unknown field `command`");
  await page.getByLabel("YAML").fill("type: task\nname: pasted\ncommands: [echo from a file]\nfiles: [data.csv]\n");
  await page.getByRole("button", { name: "Show what would happen" }).click();
  await sees(page, "repl run");
  await page.getByLabel("YAML").fill("type: task\nname: pasted\ncommands: [echo from a file]\ncache: true\n");
  await page.getByRole("button", { name: "Show what would happen" }).click();
  await page.getByRole("button", { name: "Start it" }).click();
  await page.waitForURL(/\/runs\/run_/);
  await until("completed");
  await page.goto(`${page.url()}/definition`);
  await sees(page, "echo from a file");

  // Its result is kept; a person takes it back.
  await page.goto(at("/calls"));
  await page.locator("table .row").first().click();
  await sees(page, "Where it came from");
  await page.getByRole("button", { name: "Invalidate" }).click();
  await page.waitForURL(at("/calls"));
  await sees(page, "No result is kept");

  // Runs are found by a word of their name.
  await page.goto(at("/runs?q=PASTED"));
  assert.equal(await page.locator("tbody tr").count(), 1);

  // Machines: a folder that is kept is released.
  await page.goto(at("/machines"));
  const held = page.getByRole("region", { name: "Folders that are kept" });
  const rows = await held.locator("tbody tr").count();
  await held.getByRole("button", { name: "Release" }).first().click();
  await page.waitForURL(at("/machines"));
  assert.ok(await held.locator("tbody tr").count() < rows);

  // The workflow that starts a machine is cancelled while its provider thinks about it.
  const thinks = detached("true", "--provider", "slow", "--name", "thinks");
  await page.goto(at("/workflows"));
  const starting = page.locator("main tr", { has: page.locator(".st", { hasText: "running" }) }).locator("a.row").first();
  while (!(await starting.count())) await page.reload();
  await starting.click();
  await sees(page, "Nodes");
  await page.getByLabel("Reason").fill("not needed");
  await page.getByRole("button", { name: "Cancel" }).click();
  await sees(page, "not needed");
  repl("cancel", thinks);
  await provider.open();

  // What waits for the only machine says why, and of two runs both are cancelled at once.
  const gated = gate("held");
  const slow = detached(gated.wait, "--name", "slow"), second = detached("true", "--name", "second");
  await page.goto(at(`/runs/${slow}`));
  await until("running");
  await page.goto(at("/machines"));
  await page.getByRole("region", { name: "Waiting" }).locator("tr", { hasText: "second" }).waitFor();
  await page.goto(at("/runs?show=open"));
  for (const name of ["slow", "second"]) await page.getByLabel(`Choose ${name}`).check();
  await page.locator(".several").getByRole("button", { name: "Cancel" }).click();
  for (const id of [slow, second]) {
    await page.goto(at(`/runs/${id}`));
    await until("cancelled");
  }

  await page.goto(at("/spending?by=run"));
  await sees(page, "Ledger");
  await page.goto(at("/orphans"));
  await page.getByRole("button", { name: "Scan now" }).click();
  await page.waitForURL(at("/orphans"));
  repl("token", "create", "guest", "--scope", "read");
  await page.goto(at("/settings"));
  await sees(page, "data folder");
  const guest = page.locator("tr", { hasText: "guest" });
  await guest.getByRole("button", { name: "Revoke" }).click();
  await page.waitForURL(at("/settings"));
  assert.equal(await guest.count(), 0);
});
