// The pages that are seen seldom, judged like the others: refusals, a plan before it starts, hits in a log, previews, a timeline, what was spent, a call
// and where its result came from, the help of the keyboard.
import { assert, detached, entered, expecting, file, gate, json, repl, run, sees, shown, state, visitor } from "./browser.mjs";
import { looker } from "./looking.mjs";

const PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";

await run(async browser => {
  const context = await visitor(browser);
  const page = await entered(context);
  const at = path => new URL(path, page.url()).href;
  const { look, wrong } = looker(page, Number(process.env.PAGES_WIDTH));
  expecting(/status of 40[149]/);

  // A run with files, a log that is searched, and charges; two agents, so that there is a timeline; a result that is kept.
  const files = detached(`echo ${PIXEL} | base64 -d > small.png; echo text > notes.txt; echo one error: two`, "--artifact", "*.*", "--name", "with-files");
  const step = name => `{name: ${name}, steps: [{name: do-${name}, wait: 1ms}]}`;
  const plan = file("two.repl.yml", `type: agents\nname: two\nagents:\n  - {name: left, tasks: [${step("a")}, ${step("b")}]}\n  - {name: right, tasks: [${step("c")}, ${step("d")}]}\n`);
  const two = json("run", plan, "--detach").id;
  const kept = json("run", "--detach", "--cache", "-c", "echo kept").id;
  for (const id of [files, two, kept]) {
    await page.goto(at(`/runs/${id}`));
    await state(page, "completed");
  }

  await page.goto(at(`/runs/${files}/files`));
  while (!(await page.locator("img[alt='small.png']").count())) await page.reload();
  await look("files-preview");
  await page.goto(at(`/runs/${files}/log?q=error`));
  await page.getByRole("region", { name: "Found lines" }).waitFor();
  await look("log-hits");
  await look("cost-charged", `/runs/${files}/cost`);

  await page.goto(at(`/runs/${two}`));
  await page.goto(at(await page.locator(".tree a.twist").first().getAttribute("href")));
  await page.locator("svg.timeline").waitFor();
  await look("timeline");
  await shown(page, "timeline", ".tabs");

  await page.goto(at("/spending?by=provider"));
  await page.locator("svg.columns").waitFor();
  await look("spending-by-provider");

  await page.goto(at("/calls"));
  await page.locator("table .row").first().click();
  await sees(page, "Where it came from");
  await look("call");

  for (const [name, fill] of [["plan", "type: task\ncommands: [echo hello]\n"], ["plan-of-agents", "type: agents\nagents: [{name: a, tasks: [{name: t, steps: [{name: s, wait: 10ms}]}]}]\n"]]) {
    await page.goto(at("/new"));
    await page.getByText("A run file instead").click();
    await page.getByLabel("YAML").fill(fill);
    await page.getByRole("button", { name: "Show what would happen" }).click();
    await sees(page, "You have");
    await look(name);
  }

  // What is not there, and what has changed since the page was made.
  await page.goto(at("/runs/run_zzzz"));
  await sees(page, "404");
  await look("not-found");
  const paused = detached(gate("held").wait, "--name", "stale");
  await page.goto(at(`/runs/${paused}`));
  await page.getByRole("button", { name: "Pause" }).waitFor();
  await page.evaluate(() => {
    const pause = [...document.querySelectorAll("button")].find(it => it.textContent === "Pause");
    pause.setAttribute("formaction", pause.getAttribute("formaction").replace(/seen=\w+/, "seen=created"));
    pause.click();
  });
  await sees(page, "409");
  await look("out-of-date");
  repl("cancel", paused);

  // The help, over the page.
  await page.goto(at("/runs"));
  await page.getByRole("button", { name: "Keyboard" }).click();
  await page.getByRole("dialog").waitFor();
  await look("keyboard");
  await page.keyboard.press("Escape");

  await page.getByRole("button", { name: "Sign out" }).click();
  await sees(page, "This door is closed");
  await look("closed");
  assert.deepEqual(wrong, [], wrong.join("\n"));
});
