// The pages, on a screen of this width, as they are most days: axe finds nothing in light and dark, nothing is wider than the screen, targets are
// large enough, and what is drawn is seen with forced colours.
import { assert, detached, entered, json, run, shown, state, visitor } from "./browser.mjs";
import { looker } from "./looking.mjs";
import { hangsUp, market, submit } from "./plans.mjs";

await run(async browser => {
  const context = await visitor(browser);
  const page = await entered(context);
  const at = path => new URL(path, page.url()).href;
  const { look, wrong } = looker(page, Number(process.env.PAGES_WIDTH));
  await look("first", "/");
  const failed = detached("printf '\\033[31mred\\033[0m \\033[44mon blue\\033[0m\\n'; echo error: no >&2; exit 3", "--name", "a-failure");
  const agents = submit(market(await hangsUp()));
  await page.goto(at(`/runs/${failed}`));
  await state(page, "failed");
  while (!json("approval", "ls").length) await new Promise(done => setImmediate(done));
  await look("runs", "/runs");
  await look("new", "/new");
  for (const part of ["", "/log", "/events", "/cost", "/files", "/definition"]) await look(`run${part.replace("/", "-")}`, `/runs/${failed}${part}`);
  await look("agents", `/runs/${agents}`);
  const step = await page.locator("a[href*='/steps/']").first().getAttribute("href");
  await look("step", step);
  await look("inbox", "/inbox");
  await page.goto(at("/workflows"));
  await look("workflow", await page.locator("main table a[href^='/workflows/']").first().getAttribute("href"));
  await page.setViewportSize({ width: 1280, height: 900 });
  await shown(page, "workflow");
  const places = await page.locator("header nav a").evaluateAll(links => links.map(link => link.getAttribute("href")));
  for (const place of places.filter(place => !["/runs", "/inbox"].includes(place))) await look(place.slice(1), place);
  assert.deepEqual(wrong, [], wrong.join("\n"));
});
