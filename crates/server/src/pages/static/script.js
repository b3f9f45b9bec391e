// One script for pages and for the worker that holds the one stream of a browser. Pages work without it.
"use strict";
(() => {
  // Follows the regions of all pages of this browser with one stream. `tell(page, message)` reaches one page.
  const follower = tell => {
    const pages = new Map(), known = new Map();
    let stream, timer, open = "";
    const send = (src, v) => { for (const [page, { list }] of pages) if (list.includes(src)) tell(page, { src, v }); };
    const all = message => { for (const page of pages.keys()) tell(page, message); };
    const connect = () => {
      // A page that has crashed says no goodbye: those not heard for five minutes are gone. The server takes 200 regions: the newest pages'.
      for (const [page, { at }] of pages) if (at < Date.now() - 3e5) pages.delete(page);
      const list = [...new Set([...pages.values()].reverse().flatMap(it => it.list))].slice(0, 200).sort(), wanted = list.join(" ");
      if (wanted === open && stream && stream.readyState !== 2) return;
      if (stream) stream.close();
      open = wanted; stream = undefined; known.clear();
      if (!list.length) return;
      stream = new EventSource("/ui/live?" + list.map(src => "r=" + encodeURIComponent(src)).join("&"));
      stream.addEventListener("v", e => { const { src, v } = JSON.parse(e.data); known.set(src, v); send(src, v); });
      stream.addEventListener("build", e => all({ build: e.data }));
      stream.addEventListener("over", () => { stream.close(); all({ over: true }); });
      stream.onopen = () => all({ up: true });
      stream.onerror = () => {
        all({ up: false });
        // Refused for good, for instance because the session is over: the pages find out when they ask.
        if (stream && stream.readyState === 2) { stream = undefined; open = ""; clearTimeout(timer); timer = setTimeout(connect, 3000 + Math.random() * 2000); }
      };
    };
    return {
      all,
      set(page, list) {
        pages.delete(page); pages.set(page, { list, at: Date.now() });
        for (const src of list) if (known.has(src)) tell(page, { src, v: known.get(src) });
        clearTimeout(timer); timer = setTimeout(connect, 40);
      },
      drop(page) { pages.delete(page); clearTimeout(timer); timer = setTimeout(connect, 40); },
    };
  };

  if (typeof document === "undefined") {
    const hub = follower((page, message) => page.postMessage(message));
    // The console of a shared worker is hidden: pages say what went wrong in it.
    self.onerror = fault => hub.all({ fault });
    self.onconnect = e => {
      const page = e.ports[0];
      page.onmessage = m => m.data === "bye" ? hub.drop(page) : hub.set(page, m.data);
    };
    return;
  }

  const root = document.documentElement, title = document.title.replace(/^\(\d+\+?\) /, "");
  const regions = () => [...document.querySelectorAll("live-region")];
  let link, speakAt = 0, pending = "", cut;
  const said = () => document.getElementById("said");
  // The one line that screen readers hear, at most every five seconds.
  const speak = text => {
    pending = text;
    const wait = Math.max(0, speakAt - Date.now());
    setTimeout(() => { if (pending && said()) { said().textContent = pending; pending = ""; speakAt = Date.now() + 5000; } }, wait);
  };
  // What is no longer so is taken back.
  const unsay = ending => {
    if (pending.endsWith(ending)) pending = "";
    if (said() && said().textContent.endsWith(ending)) said().textContent = "";
  };
  // Another build has made what came: once a minute, because two builds behind one address would have it for ever.
  const renew = () => {
    const now = Date.now();
    let last = now;
    // Some browsers keep nothing here.
    try { last = +sessionStorage.renewed || 0; } catch {}
    if (last > now - 6e4) return speak("The server was updated: load this page again.");
    sessionStorage.renewed = now;
    location.reload();
  };
  const hear = message => {
    if (message.fault) console.error(message.fault);
    if (message.build && message.build !== root.dataset.build) return renew();
    if (message.over) return location.reload();
    if (message.up === false) { clearTimeout(cut); cut = setTimeout(() => speak("Not connected: this page may be out of date."), 2000); }
    if (message.up) { clearTimeout(cut); if (said() && said().textContent.startsWith("Not connected")) speak("Connected again."); }
    if (message.src) for (const region of regions()) if (region.getAttribute("src") === message.src) region.heard(message.v);
  };
  const connect = () => {
    const list = regions().map(region => region.getAttribute("src"));
    if (!link) {
      if (window.SharedWorker) {
        const port = new SharedWorker(root.dataset.script, "remuda").port;
        port.onmessage = m => hear(m.data);
        link = { set: list => port.postMessage(list), drop: () => port.postMessage("bye") };
      } else {
        const hub = follower((_, message) => hear(message));
        link = { set: list => document.hidden || hub.set(1, list), drop: () => hub.drop(1) };
        document.addEventListener("visibilitychange", () => document.hidden ? link.drop() : connect());
      }
    }
    link.set(list);
  };
  addEventListener("pagehide", () => link && link.drop());
  addEventListener("pageshow", e => { if (e.persisted) connect(); });

  // Makes `old` like `fresh`, node by node: what is alike stays, so focus, opened details and scrolling stay too.
  const key = node => node.nodeType === 1 ? node.id || node.getAttribute("src") || "" : "";
  const alike = (a, b) => a.nodeType === b.nodeType && a.nodeName === b.nodeName && key(a) === key(b);
  const attributes = (old, fresh) => {
    // The row that was chosen by keys stays so.
    const at = old.classList.contains("at");
    const keep = name => (name === "open" && old.nodeName === "DETAILS") || name === "data-shown" || name === "data-ready";
    for (const { name } of [...old.attributes]) if (!fresh.hasAttribute(name) && !keep(name)) old.removeAttribute(name);
    for (const { name, value } of fresh.attributes) if (!keep(name) && old.getAttribute(name) !== value) old.setAttribute(name, value);
    if (at) old.classList.add("at");
  };
  // What the script itself has put into a region.
  const ours = node => node.nodeType === 1 && node.matches(".copy,.fresh,[data-keep]");
  const swap = (old, fresh) => {
    const byKey = new Map();
    for (const child of old.childNodes) if (key(child)) byKey.set(key(child), child);
    let at = old.firstChild;
    for (const child of [...fresh.childNodes]) {
      while (at && ours(at)) at = at.nextSibling;
      let match = key(child) ? byKey.get(key(child)) : at && !key(at) && alike(at, child) ? at : undefined;
      if (match && match.nodeName !== child.nodeName) match = undefined;
      if (!match) { old.insertBefore(child, at); continue; }
      if (match === at) at = at.nextSibling; else old.insertBefore(match, at);
      if (match.nodeType !== 1) { if (match.data !== child.data) match.data = child.data; continue; }
      const busy = match === document.activeElement && /^(INPUT|TEXTAREA|SELECT)$/.test(match.nodeName);
      if (busy || match.isEqualNode(child) || match.nodeName === "LIVE-REGION") continue;
      if (match.nodeName === "TIME") { match.dataset.shown = ""; }
      attributes(match, child);
      if (match.nodeName === "TEXTAREA") { if (match.value === match.defaultValue) match.value = child.value; continue; }
      swap(match, child);
    }
    while (at) { const next = at.nextSibling; if (!ours(at) && !(at.nodeType === 1 && at.contains(document.activeElement) && /^(INPUT|TEXTAREA)$/.test(document.activeElement.nodeName))) at.remove(); at = next; }
  };

  const NEW = " new in the list.", OLD = "This page may be out of date.";
  customElements.define("live-region", class extends HTMLElement {
    // A newer version exists. One request at a time; what is heard meanwhile repeats it.
    heard(v) {
      if (v === this.dataset.v) { this.wanted = undefined; return; }
      this.wanted = v;
      if (!this.busy) this.fetch();
    }
    async fetch() {
      this.busy = true;
      try {
        while (this.wanted && this.wanted !== this.dataset.v) {
          const asked = this.wanted;
          const answer = await fetch(this.getAttribute("src"), { cache: "no-store" });
          if (answer.status === 401) return location.reload();
          // Too many requests, or the server is not well: what is shown is old until it is.
          if (answer.status === 429 || answer.status > 499) { speak(OLD); setTimeout(() => this.busy || this.fetch(), 4000 + Math.random() * 2000); break; }
          if (!answer.ok) break;
          unsay(OLD);
          if (answer.headers.get("x-build") !== root.dataset.build) return renew();
          const html = await answer.text();
          await this.settled();
          this.dataset.v = answer.headers.get("x-version");
          this.put(html);
          if (this.wanted === asked) this.wanted = undefined;
        }
      // Not reached: the stream tells when the server is back.
      } catch {} finally { this.busy = false; }
    }
    // Text that is being selected is not pulled away.
    settled() {
      const inside = () => { const s = getSelection(); return s && !s.isCollapsed && this.contains(s.anchorNode); };
      return inside() ? new Promise(done => { const look = () => inside() ? setTimeout(look, 500) : done(); look(); }) : undefined;
    }
    put(html) {
      const fresh = document.createElement("template");
      fresh.innerHTML = html;
      // The end of a log stays in view, also if there was no log before.
      const log = this.querySelector("[data-tail]"), follows = log ? log.scrollTop + log.clientHeight > log.scrollHeight - 40 : !this.querySelector(".log");
      const held = this.hold(fresh.content);
      const before = this.querySelector(".st");
      const state = before && before.textContent;
      swap(this, fresh.content);
      if (held) this.offer(held, html); else this.shown();
      if (follows) { const now = this.querySelector(".log"); if (now) now.scrollTop = now.scrollHeight; }
      const after = this.querySelector(".title .st");
      if (after && state && after.textContent !== state) speak("Now " + after.textContent + ".");
      // A region may bring others.
      if (this.querySelector("live-region")) connect();
      dress();
    }
    // New rows at the head of a list wait until they are asked for.
    hold(content) {
      const now = this.querySelector("[data-list]"), next = content.querySelector("[data-list]");
      if (!now || !next || this.take) { this.take = false; return 0; }
      const ids = new Set([...now.children].map(row => row.id));
      if (![...next.children].some(row => ids.has(row.id))) return 0;
      let held = 0;
      for (const row of [...next.children]) { if (ids.has(row.id)) break; row.remove(); held++; }
      return held;
    }
    offer(count, html) {
      let button = this.querySelector(".fresh");
      if (!button) {
        button = document.createElement("button");
        button.type = "button"; button.className = "fresh";
        this.prepend(button);
      }
      button.textContent = count + " new";
      button.onclick = () => { this.take = true; this.put(html); };
      speak(count + NEW);
    }
    // Nothing waits any more. Who has pressed the button goes on at the first row.
    shown() {
      const button = this.querySelector(".fresh");
      if (!button) return;
      if (button === document.activeElement) this.querySelector("a.row")?.focus();
      button.remove();
      unsay(NEW);
    }
  });

  // Ages, running times, copy buttons, the number in the title.
  const units = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
  const span = ms => { const s = Math.max(0, Math.round(ms / 1000)); for (const [n, u] of units) if (s >= n) return Math.floor(s / n) + " " + u; return "0 s"; };
  const dress = () => {
    const now = Date.now();
    for (const time of document.querySelectorAll("[data-age],[data-since],[data-until]")) {
      const { age, since, until } = time.dataset, at = +(age || since || until), ahead = at > now + 1000;
      const text = since ? span(now - at) : until ? span(at - now) : ahead ? "in " + span(at - now) : now - at < 5000 ? "now" : span(now - at) + " ago";
      if (time.dataset.shown !== text) { time.dataset.shown = text; time.textContent = text; }
    }
    if (navigator.clipboard) for (const code of document.querySelectorAll("[data-copy]:not([data-ready])")) {
      code.dataset.ready = "";
      const button = document.createElement("button");
      button.type = "button"; button.className = "copy"; button.textContent = "Copy";
      button.onclick = () => navigator.clipboard.writeText(code.textContent).then(() => speak("Copied."));
      code.after(button);
    }
    for (const it of document.querySelectorAll("[data-all][hidden]")) it.hidden = false;
    const count = document.querySelector("[data-count]");
    document.title = (count ? "(" + count.dataset.count + ") " : "") + title;
  };

  // Keyboard: never in a field, never with a modifier, never while text is composed; can be switched off.
  const places = { r: "/runs", i: "/inbox", m: "/machines", w: "/workflows", s: "/spending", o: "/orphans", c: "/calls", t: "/settings", n: "/new" };
  let go = 0;
  const off = () => { try { return localStorage.getItem("keys") === "off"; } catch { return false; } };
  const move = step => {
    const rows = [...document.querySelectorAll(".list tbody tr, .letters li, .tree .node")].filter(row => row.querySelector("a"));
    if (!rows.length) return;
    const at = rows.findIndex(row => row.classList.contains("at") || row.contains(document.activeElement));
    const next = rows[Math.min(rows.length - 1, Math.max(0, at < 0 ? (step > 0 ? 0 : rows.length - 1) : at + step))];
    rows.forEach(row => row.classList.remove("at"));
    next.classList.add("at");
    (next.querySelector("a.row") || next.querySelector("a")).focus();
  };
  const help = () => {
    // One that was just closed stays in the document until its event comes.
    let box = document.querySelector(".help[open]");
    if (box) { box.close(); return; }
    const lines = [["j k", "next, previous row"], ["enter", "open"], ["/", "search"], ["g r", "runs"], ["g i", "inbox"], ["g m", "machines"], ["g w", "workflows"], ["g c", "calls"], ["g s", "spending"], ["g o", "orphans"], ["g t", "settings"], ["g n", "new run"], ["?", "this help"]];
    box = document.createElement("dialog"); box.className = "help"; box.setAttribute("aria-label", "Keyboard");
    const list = document.createElement("dl");
    for (const [keys, what] of lines) {
      const dt = document.createElement("dt"), dd = document.createElement("dd"), kbd = document.createElement("kbd");
      kbd.textContent = keys; dt.append(kbd); dd.textContent = what; list.append(dt, dd);
    }
    const heading = document.createElement("h1"), toggle = document.createElement("button"), close = document.createElement("button"), row = document.createElement("p");
    heading.textContent = "Keyboard"; row.className = "actions";
    toggle.type = close.type = "button"; close.textContent = "Close"; close.onclick = () => box.close();
    const label = () => { toggle.textContent = off() ? "Switch on" : "Switch off"; };
    toggle.onclick = () => { try { localStorage.setItem("keys", off() ? "on" : "off"); } catch {} label(); };
    label(); row.append(toggle, close);
    box.append(heading, list, row);
    box.addEventListener("close", () => box.remove());
    document.body.append(box); box.showModal();
  };
  addEventListener("keydown", e => {
    const t = e.target;
    if (e.isComposing || e.ctrlKey || e.metaKey || e.altKey || e.defaultPrevented || off()) return;
    if (t && (t.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(t.nodeName))) return;
    if (document.querySelector("dialog[open]") && e.key !== "?") return;
    if (go && Date.now() - go < 1500) { go = 0; if (places[e.key]) { e.preventDefault(); location.assign(places[e.key]); } return; }
    if (e.key === "g") go = Date.now();
    else if (e.key === "j") move(1);
    else if (e.key === "k") move(-1);
    else if (e.key === "?") help();
    else if (e.key === "/") { const search = document.getElementById("search"); if (search) { e.preventDefault(); search.focus(); } }
  });

  // The box at the head of a list chooses all of its rows.
  document.addEventListener("change", e => {
    const all = e.target;
    if (all.matches("[data-all]")) for (const it of all.closest("table").querySelectorAll("tbody [name=run]")) it.checked = all.checked;
  });

  // Scrolled to an end of a window of a log: the window beside it is added.
  let adding = false;
  document.addEventListener("scroll", async e => {
    const log = e.target;
    if (adding || !log.matches || !log.matches(".log") || log.querySelectorAll("li").length > 20000) return;
    const nav = log.parentNode.querySelector("nav.pages"), link = rel => nav && nav.querySelector("[rel=" + rel + "]");
    const up = log.scrollTop < 40, down = log.scrollTop + log.clientHeight > log.scrollHeight - 40;
    let kept = log.querySelector("[data-keep]");
    const from = up ? kept || link("prev") : down && link("next"), to = from && (from.dataset.to || from.getAttribute("href"));
    if (!to) return;
    adding = true;
    try {
      const page = new DOMParser().parseFromString(await (await fetch(to)).text(), "text/html");
      const lines = [...page.querySelectorAll("nav.pages ~ .log li")].filter(line => !document.getElementById(line.id));
      const on = page.querySelector("nav.pages [rel=" + (up ? "prev" : "next") + "]");
      if (up) {
        const before = log.scrollHeight;
        if (!kept) { kept = document.createElement("ol"); kept.dataset.keep = ""; log.prepend(kept); }
        kept.prepend(...lines);
        kept.dataset.to = on ? on.getAttribute("href") : "";
        log.scrollTop += log.scrollHeight - before;
      } else {
        log.lastElementChild.append(...lines);
        if (on) from.href = on.getAttribute("href"); else from.remove();
      }
    // Scrolled again, it is asked for again.
    } catch {} finally { adding = false; }
  }, true);

  addEventListener("DOMContentLoaded", () => {
    const keys = document.getElementById("keys");
    if (keys) { keys.hidden = false; keys.onclick = help; }
    dress(); setInterval(dress, 1000);
    const log = document.querySelector("[data-tail]");
    if (log) log.scrollTop = log.scrollHeight;
    // The line that failed stands behind a few others.
    const fails = document.querySelector(".log .fails"), box = fails && fails.closest(".log");
    if (fails) box.scrollTop = fails.offsetTop - box.offsetTop - 250;
    if (regions().length) { connect(); setInterval(connect, 6e4); }
  });
})();
