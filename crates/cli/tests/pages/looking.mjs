// Looks at a page as people with other screens, colours and settings see it, and keeps what is wrong with it.
import { judged, picture } from "./browser.mjs";

/// What a pointer hits that is smaller than 24 pixels. Links in a sentence are as high as its lines.
const small = () => {
  const inSentence = it => it instanceof HTMLElement && getComputedStyle(it).display === "inline" && it.parentElement.innerText.trim() !== it.innerText.trim();
  const target = it => it.closest("label") || it;
  const all = document.querySelectorAll("a, button, input, select, textarea, summary");
  return [...all].filter(it => it.checkVisibility({ visibilityProperty: true }) && !it.closest(".skip") && !inSentence(it)).flatMap(it => {
    const { width, height } = target(it).getBoundingClientRect();
    return width >= 24 && height >= 24 ? [] : [`a target of ${width.toFixed(1)} x ${height.toFixed(1)} pixels: ${it.outerHTML.slice(0, 120)}`];
  });
};

/// What moves although a person asked for stillness.
const moving = () => [...document.querySelectorAll("*")].flatMap(it => {
  const { animationName, transitionDuration, scrollBehavior } = getComputedStyle(it);
  const still = animationName === "none" && parseFloat(transitionDuration) === 0 && scrollBehavior === "auto";
  return still ? [] : [`moves: ${it.outerHTML.slice(0, 120)}`];
});

/// With the few colours of a system's own palette: what is drawn stands out, and the page of a navigation that is open does.
const drowned = () => {
  const parts = colour => colour.match(/[\d.]+/g).slice(0, 3).map(Number).map(n => colour.startsWith("color(") ? n * 255 : n);
  const light = colour => {
    const [r, g, b] = parts(colour).map(n => n / 255).map(n => n <= 0.04045 ? n / 12.92 : ((n + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const contrast = (a, b) => { const [low, high] = [light(a), light(b)].sort((x, y) => x - y); return (high + 0.05) / (low + 0.05); };
  const probe = document.createElement("i");
  probe.style.color = "Canvas";
  document.body.append(probe);
  const canvas = getComputedStyle(probe).color;
  probe.remove();
  const fill = it => getComputedStyle(it).fill;
  const faint = (it, least, ground) => contrast(fill(it), ground) >= least ? [] : [`${fill(it)} on ${ground}: ${it.outerHTML.slice(0, 120)}`];
  const node = it => it.closest("a, g")?.querySelector(".node");
  const drawn = (selector, least, ground) => [...document.querySelectorAll(`.drawing ${selector}`)].flatMap(it => faint(it, least, ground(it)));
  const current = [...document.querySelectorAll("nav [aria-current]")].flatMap(it => {
    const other = it.parentElement.querySelector("a:not([aria-current])");
    const look = one => { const { borderColor, boxShadow, outlineStyle, textDecorationLine, backgroundColor } = getComputedStyle(one); return [borderColor, boxShadow, outlineStyle, textDecorationLine, backgroundColor].join(); };
    return !other || look(other) !== look(it) ? [] : [`looks like its neighbours: ${it.outerHTML.slice(0, 120)}`];
  });
  return [...drawn("text, .drawing tspan", 4.5, it => node(it) ? fill(node(it)) : canvas), ...drawn(".bar", 3, () => canvas), ...current];
};

/// Looks at pages with a screen of this width. `look` opens an address, or takes the page as it is; `wrong` holds what was found.
export function looker(page, width) {
  const wrong = [];
  const look = async (name, path) => {
    await page.setViewportSize({ width, height: 900 });
    if (path) await page.goto(new URL(path, page.url()).href);
    const note = (how, found) => wrong.push(...found.map(it => `${name} (${how}): ${it}`));
    for (const colorScheme of ["light", "dark"]) {
      await page.emulateMedia({ colorScheme, forcedColors: "active" });
      await picture(page, `${name}-forced-${colorScheme}-${width}`);
      note(`forced colours, ${colorScheme}`, await page.evaluate(drowned));
      await page.emulateMedia({ colorScheme, forcedColors: "none" });
      await picture(page, `${name}-${colorScheme}-${width}`);
      note(colorScheme, await judged(page));
    }
    await page.emulateMedia({ colorScheme: "light", reducedMotion: "reduce" });
    const wide = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
    note(`${width} pixels`, wide > 0 ? [`wider than the screen by ${wide} pixels`] : []);
    note("targets", await page.evaluate(small));
    note("reduced motion", await page.evaluate(moving));
    await page.emulateMedia({ reducedMotion: null });
    // What is closed is judged too.
    const shut = await page.evaluate(() => [...document.querySelectorAll("details:not([open])")].map(it => { it.open = true; it.dataset.wasShut = ""; }).length);
    if (!shut) return;
    for (const colorScheme of ["light", "dark"]) {
      await page.emulateMedia({ colorScheme });
      await picture(page, `${name}-opened-${colorScheme}-${width}`);
      note(`opened, ${colorScheme}`, await judged(page));
    }
    await page.emulateMedia({ colorScheme: "light" });
    const wider = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
    note(`opened, ${width} pixels`, wider > 0 ? [`wider than the screen by ${wider} pixels`] : []);
    note("opened, targets", await page.evaluate(small));
    await page.evaluate(() => { for (const it of document.querySelectorAll("[data-was-shut]")) { it.open = false; delete it.dataset.wasShut; } });
  };
  return { look, wrong };
}
