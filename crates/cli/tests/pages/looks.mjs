// Every page, in light and dark, on a narrow and on a wide screen: axe finds nothing, nothing is wider than the screen, targets are large enough, and
// the keyboard reaches what the pointer does.
import { assert, detached, entered, judged, json, picture, repl, run, state, visitor } from "./browser.mjs";
import { hangsUp, market, submit } from "./plans.mjs";

await run(async browser => {
  const context = await visitor(browser);
  const page = await entered(context);
  const at = path => new URL(path, page.url()).href;
  const wrong = [];
  const look = async (name, path) => {
    await page.goto(at(path));
    for (const colorScheme of ["light", "dark"]) {
      await page.emulateMedia({ colorScheme });
      for (const width of [320, 1440]) {
        await page.setViewportSize({ width, height: 900 });
        await picture(page, `${name}-${colorScheme}-${width}`);
        const found = await judged(page);
        const wide = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
        if (wide > 0) found.push(`wider than the screen by ${wide} pixels`);
        wrong.push(...found.map(it => `${name} (${colorScheme}, ${width}): ${it}`));
      }
    }
  };
  await look("first", "/");
  const failed = detached("printf '\\033[31mred\\033[0m \\033[44mon blue\\033[0m\\n'; echo error: no >&2; exit 3", "--name", "a-failure");
  const market_ = submit(market(await hangsUp()));
  await page.goto(at(`/runs/${failed}`));
  await state(page, "failed");
  while (!json("approval", "ls").length) await new Promise(done => setImmediate(done));
  await look("runs", "/runs");
  await look("new", "/new");
  for (const part of ["", "/log", "/events", "/cost", "/files"]) await look(`run${part.replace("/", "-")}`, `/runs/${failed}${part}`);
  await look("agents", `/runs/${market_}`);
  await look("inbox", "/inbox");
  const places = await page.locator("header nav a").evaluateAll(links => links.map(link => link.getAttribute("href")));
  for (const place of places.filter(place => !["/runs", "/inbox"].includes(place))) await look(place.slice(1), place);

  // The keyboard: Tab begins at the skip link, and a row is reached and opened without the pointer.
  await page.setViewportSize({ width: 1280, height: 900 });
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
  repl("approval", "ls");
  assert.deepEqual(wrong, [], wrong.join("\n"));
});
