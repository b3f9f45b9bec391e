// Every page, in light and dark, on a screen of this width: axe finds nothing, nothing is wider than the screen, targets are large enough, and
// the keyboard reaches what the pointer does.
import { assert, detached, entered, judged, json, picture, run, shown, state, visitor } from "./browser.mjs";
import { hangsUp, market, submit } from "./plans.mjs";

const width = Number(process.env.PAGES_WIDTH);

await run(async browser => {
  const context = await visitor(browser);
  const page = await entered(context);
  const at = path => new URL(path, page.url()).href;
  await page.setViewportSize({ width, height: 900 });
  const wrong = [];
  const look = async (name, path) => {
    await page.goto(at(path));
    for (const colorScheme of ["light", "dark"]) {
      await page.emulateMedia({ colorScheme });
      await picture(page, `${name}-${colorScheme}-${width}`);
      const found = await judged(page);
      const wide = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
      if (wide > 0) found.push(`wider than the screen by ${wide} pixels`);
      wrong.push(...found.map(it => `${name} (${colorScheme}): ${it}`));
    }
  };
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
  await page.emulateMedia({ colorScheme: "light" });
  await shown(page, "workflow");
  const places = await page.locator("header nav a").evaluateAll(links => links.map(link => link.getAttribute("href")));
  for (const place of places.filter(place => !["/runs", "/inbox"].includes(place))) await look(place.slice(1), place);

  // The keyboard: Tab begins at the skip link, and a row is reached and opened without the pointer.
  await page.goto(at("/runs"));
  await page.keyboard.press("Tab");
  assert.equal(await page.evaluate(() => document.activeElement.textContent), "To the content");
  await page.keyboard.press("Enter");
  await page.keyboard.press("j");
  await page.keyboard.press("Enter");
  await page.waitForURL(/\/runs\/run_/);
  await page.keyboard.press("g");
  await page.keyboard.press("r");
  await page.waitForURL(at("/runs"));
  await page.keyboard.press("/");
  await page.keyboard.type("gr");
  assert.equal(await page.inputValue("#search"), "gr");

  const small = await page.evaluate(() => [...document.querySelectorAll("a, button, input, select, summary")].filter(it => it.offsetParent && !it.closest("p, li, td, .skip")).map(it => [it.outerHTML.slice(0, 90), it.getBoundingClientRect()]).filter(([, box]) => box.height < 24 || box.width < 24).map(([html]) => html));
  wrong.push(...small.map(it => `a target below 24 pixels: ${it}`));
  assert.deepEqual(wrong, [], wrong.join("\n"));
});
