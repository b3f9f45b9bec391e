// Drives Chromium for the tests of the pages: starts it, signs in, and collects everything that a page complains about.
import { createRequire } from "node:module";
import { execFile, execFileSync } from "node:child_process";
import { appendFileSync, mkdirSync, mkdtempSync, promises, rmSync, writeFileSync } from "node:fs";
import { join, resolve } from "node:path";
import assert from "node:assert/strict";
import http from "node:http";

const require = createRequire(join(process.env.PAGES_MODULES, "index.js"));
const { chromium } = require("playwright-core");
const axe = require("axe-core").source;
export { assert };

// As root there is no sandbox; without the others it looks for updates and hosts that a closed network does not have.
const FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
  "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--disable-features=Translate,MediaRouter"];
// A page that needs longer is stuck.
const LONGEST_MS = process.env.PAGES_LOG_MB ? 600_000 : 45_000;

export const repl = (...words) => execFileSync("repl", words, { encoding: "utf8", stdio: ["ignore", "pipe", "pipe"] });
export const json = (...words) => JSON.parse(repl(...words, "--json"));
/// In the background; the promise holds its end.
export const begun = (...words) => new Promise((done, failed) =>
  execFile("repl", words, (error, stdout, stderr) => error ? failed(new Error(stderr)) : done(stdout)));
export const file = (name, text) => { writeFileSync(name, text); return name; };
/// Settings of this home, for a control plane that has not started yet.
export const settings = text => { const folder = join(process.env.HOME, ".config/remuda"); mkdirSync(folder, { recursive: true }); writeFileSync(join(folder, "config.toml"), text); };
/// The id of a run of this command.
export const detached = (command, ...flags) => json("run", "--detach", ...flags, "-c", command).id;
/// A place where a command waits until the script lets it through.
export function gate(name) {
  const path = resolve(name);
  execFileSync("mkfifo", [path]);
  return { wait: `read _ < ${path}`, open: () => promises.writeFile(path, "go\n") };
}
export const link = () => repl("ui", "--print").trim();

/// A request without a browser: `.localhost` is this machine. Headers are sent as they stand.
export const plain = (url, { method = "GET", headers = {}, body, socketPath } = {}) => new Promise((done, failed) => {
  const { hostname, port, pathname, search } = new URL(url);
  const host = hostname.endsWith(".localhost") ? "127.0.0.1" : hostname;
  const request = http.request({ host, port, socketPath, path: pathname + search, method, headers: { host: `${hostname}:${port}`, ...headers } }, answer => {
    let text = "";
    answer.setEncoding("utf8").on("data", part => { text += part; }).on("end", () => done({ status: answer.statusCode, headers: answer.headers, text }));
  });
  request.on("error", failed).end(body);
});
/// The cookies of a page, as a browser would send them.
export const cookies = async page => (await page.context().cookies()).map(({ name, value }) => `${name}=${value}`).join("; ");

const faults = [];
let allowed = [];
/// Errors that the rest of a script provokes.
export const expecting = pattern => allowed.push(pattern);
const complain = text => { if (!allowed.some(pattern => pattern.test(text))) faults.push(text); };

function watch(page) {
  page.setDefaultTimeout(LONGEST_MS);
  page.on("console", message => {
    if (message.type() === "error") complain(`console: ${message.text()} (${message.location().url})`);
  });
  page.on("pageerror", error => complain(`page: ${error.stack || error}`));
  page.on("crash", () => complain("the page has crashed"));
}

/// A browser context of its own: its own cookies. Every page in it is watched.
export async function visitor(browser, options = {}) {
  const context = await browser.newContext({ viewport: { width: 1280, height: 900 }, ...options });
  await context.exposeBinding("cspViolated", (_, what) => complain(`CSP: ${what}`)).catch(() => {});
  if (options.javaScriptEnabled !== false) {
    await context.addInitScript(() => addEventListener("securitypolicyviolation", e =>
      window.cspViolated(`${e.violatedDirective} ${e.blockedURI} ${e.sample} at ${location.href}`)));
  }
  context.on("page", watch);
  return context;
}

/// A page that has entered by `repl ui`.
export async function entered(context) {
  const page = await context.newPage();
  await page.goto(link());
  await page.waitForURL(url => url.pathname === "/");
  return page;
}

/// Runs the script; anything that a page complained about fails it.
export async function run(script) {
  const profile = mkdtempSync(join(process.env.TMPDIR || "/tmp", "chromium-"));
  const browser = await chromium.launch({ executablePath: "/usr/bin/chromium", args: FLAGS, headless: true, env: { ...process.env, HOME: profile } });
  let failed;
  try {
    await script(browser);
  } catch (error) {
    failed = error;
    for (const context of browser.contexts()) for (const page of context.pages()) {
      console.error(`--- ${page.url()}\n${(await page.locator("body").innerText({ timeout: 1000 }).catch(String)).slice(0, 3000)}`);
    }
  }
  await browser.close();
  rmSync(profile, { recursive: true, force: true, maxRetries: 5 });
  for (const fault of faults) console.error(fault);
  if (failed) console.error(failed);
  process.exit(failed || faults.length ? 1 : 0);
}

/// Waits for this text in the page.
export const sees = (page, text) => page.getByText(text).filter({ visible: true }).first().waitFor();
/// Waits for a state word at the top of a run's page.
export const state = (page, word) => page.locator(".title .st", { hasText: word }).first().waitFor();

/// What axe finds wrong with a page.
export async function judged(page) {
  await page.evaluate(axe);
  // Rules of WCAG 2.2 are off unless they are asked for.
  const rules = { "target-size": { enabled: true } };
  const { violations } = await page.evaluate(rules => window.axe.run(document, { resultTypes: ["violations"], rules }), rules);
  return violations.map(it => `${it.id} (${it.impact}): ${it.help}\n    ${it.nodes.slice(0, 3).map(node => `${node.target} ${node.html.slice(0, 160)} ${node.any[0]?.message || ""}`).join("\n    ")}`);
}

/// For docs/performance.md, in the file that `PAGES_FIGURES` names: what was done since the last figure, and how long it took.
let since = Date.now();
export function figure(what) {
  if (process.env.PAGES_FIGURES) appendFileSync(process.env.PAGES_FIGURES, `${what}: ${Date.now() - since} ms\n`);
  since = Date.now();
}

/// A picture for people to look at, if they ask for them.
export async function picture(page, name) {
  if (process.env.PAGES_PICTURES) await page.screenshot({ path: join(process.env.PAGES_PICTURES, `${name}.png`) });
}

/// A picture of the manual, when it is written anew. It begins at `from`, where a page is longer than the picture.
export async function shown(page, name, from) {
  if (!process.env.PAGES_MANUAL) return;
  const before = page.viewportSize();
  await page.setViewportSize({ width: 960, height: 560 });
  // The manual names no folder of the machine that took its pictures.
  await page.evaluate(home => {
    const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (texts.nextNode()) if (texts.currentNode.data.includes(home)) texts.currentNode.data = texts.currentNode.data.replaceAll(home, "~");
  }, process.env.HOME);
  if (from) await page.locator(from).first().evaluate(it => scrollTo(0, it.getBoundingClientRect().top + scrollY - 16));
  await page.screenshot({ path: join(process.env.PAGES_MANUAL, `${name}.png`) });
  await page.setViewportSize(before);
}
