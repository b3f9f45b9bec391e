// A log of many megabytes: opened in the time of a small one, walked through, searched, and followed while it grows.
import { assert, detached, entered, figure, gate, picture, plain, cookies, run, sees, shown, visitor } from "./browser.mjs";
import { spawn } from "node:child_process";
import { createHash } from "node:crypto";

// About 60 bytes a line: 24 MB, or as many megabytes as `PAGES_LOG_MB` says (200 is the size that is promised). One needle near the end,
// colours, and things that must not be believed.
const LINES = Math.round(Number(process.env.PAGES_LOG_MB || 24) * 1e6 / 60);
const WRITE = `awk 'BEGIN { for (n = 1; n <= ${LINES}; n++) { if (n == ${LINES - 1000}) print "the needle is here"; print "line " n " of a log that is long enough to be read in windows" } }'
printf '\\033[1;31mred and bold\\033[0m \\033]0;title\\007end\\n'
printf '<script>document.title="pwned"</script><img src=x onerror=alert(1)>\\n'
printf 'user \\342\\200\\256gpj.exe\\n'
printf '10%%\\r50%%\\r100%%\\n'`;

await run(async browser => {
  const context = await visitor(browser);
  const page = await entered(context);
  const at = path => new URL(path, page.url()).href;
  const held = gate("held");
  const id = detached(`${WRITE}; ${held.wait}; echo the last line`);
  const end = page.locator(".log", { hasText: "100%" });
  await page.goto(at(`/runs/${id}/log`));
  await end.waitFor();
  figure(`${LINES} lines are written and followed`);
  await page.goto(at(`/runs/${id}/log`));
  await end.waitFor();
  figure("opened at its end");
  const log = page.locator(".log");
  const text = await log.innerText();
  assert.ok(!/10%|50%/.test(text.slice(-200)), "what was overwritten is not shown");
  assert.ok(text.includes('<script>document.title="pwned"</script>'), "markup is text");
  assert.ok(text.includes("U+202E") && text.includes("red and bold end"), text.slice(-300));
  assert.equal(await log.locator(".ink1.bold").innerText(), "red and bold");
  assert.ok(!(await page.title()).includes("pwned"));
  await picture(page, "log");

  const inView = () => log.evaluate(it => it.scrollTop + it.clientHeight > it.scrollHeight - 40);
  assert.ok(await inView(), "the end is in view");
  assert.equal(await page.getByRole("link", { name: "Later" }).count(), 0, "nothing is behind the end");

  // Scrolled to its beginning, the window before it comes, and stays while the log goes on.
  const lines = () => log.locator("li").count();
  const few = await lines();
  await log.evaluate(it => { it.scrollTop = 0; });
  await page.waitForFunction(count => document.querySelectorAll(".log li").length > count, few);
  const more = await lines();
  figure("scrolled up by a window");
  const ids = await log.locator("li").evaluateAll(all => all.map(it => it.id));
  assert.equal(new Set(ids).size, ids.length, "no line twice");
  await log.evaluate(it => { it.scrollTop = it.scrollHeight; });

  // One window is small, however large the log is.
  const cookie = await cookies(page);
  const weight = (await plain(at(`/runs/${id}/log?from=0`), { headers: { cookie } })).text.length;
  assert.ok(weight < 400_000, `${weight} bytes`);

  // Followed to its end.
  await page.evaluate(() => { window.stays = true; });
  figure("looked at");
  await held.open();
  await log.getByText("the last line").waitFor();
  figure("followed to the last line");
  assert.ok(await page.evaluate(() => window.stays) && await inView());
  assert.ok(await lines() > more - 5, "what was added by scrolling stays");

  // Downloaded, it is what was written, byte by byte.
  const [download] = await Promise.all([page.waitForEvent("download"), page.getByRole("link", { name: "Download" }).click()]);
  const sum = of => { const hash = createHash("sha256"); return new Promise((done, failed) => of.on("error", failed).on("data", part => hash.update(part)).on("end", () => done(hash.digest("hex")))); };
  const written = spawn("sh", ["-c", `${WRITE}; echo the last line`], { stdio: ["ignore", "pipe", "inherit"] });
  assert.equal(await sum(await download.createReadStream()), await sum(written.stdout), "the download is what was written");
  assert.equal(download.suggestedFilename(), `${id}.log`);
  await download.delete();
  figure("downloaded, and compared with what was written");

  // Searched: the hit leads to its place.
  await page.getByLabel("Find in the log").fill("the needle");
  await page.getByRole("button", { name: "Find" }).click();
  const found = page.getByRole("region", { name: "Found lines" });
  while (!(await found.count())) {
    await page.getByRole("link", { name: "Go on" }).click();
    await page.waitForLoadState();
  }
  figure("searched up to the needle at its end");
  await found.locator("a").first().click();
  const line = page.locator(".log li", { hasText: "the needle is here" });
  await line.waitFor();
  assert.match(page.url(), /from=\d+/);
  assert.ok(await line.evaluate(it => it.matches(":target")), "the permanent link leads to the line");
  await page.getByRole("link", { name: "Beginning" }).click();
  await sees(page, "line 1 of a log");
  const first = await lines();
  await log.evaluate(it => { it.scrollTop = it.scrollHeight; });
  await page.waitForFunction(count => document.querySelectorAll(".log li").length > count, first);
  assert.match(await log.locator("li").nth(first).innerText(), /line \d+ of a log/);

  // A failed run opens at its first failure.
  const failed = detached(`for n in 1 2 3; do awk 'BEGIN { for (n = 0; n < 2000; n++) print "all is well in line " n }'; echo "error: this went wrong"; done; exit 3`);
  await page.goto(at(`/runs/${failed}/log`));
  while (!(await page.locator(".title .st").first().innerText()).includes("failed")) await page.reload();
  await page.goto(at(`/runs/${failed}/log`));
  const line10 = page.locator(".log li").nth(10);
  assert.ok((await line10.innerText()).includes("error: this went wrong") && await line10.evaluate(it => it.matches(".fails")), "it stands behind ten others");
  assert.equal(await page.locator(".log .fails").count(), 1);
  await shown(page, "log", ".tabs");
});
