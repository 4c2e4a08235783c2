// The live page: asks with the visitor's key, shows what changed, changes nothing without a click.
import { colour, lines, strip } from "./charts.js";

const $ = id => document.getElementById(id);
const streams = new Map();
let chosen = location.hash.slice(1) || null;
let server = null, stopper = null, shownDomains = "", shownVersion = "";

const percent = value => (value === null || value === undefined ? "–" : `${Math.round(100 * value)} %`);
const several = (count, word) => `${count} ${word}${count === 1 ? "" : "s"}`;
const headers = () => {
  const key = sessionStorage.getItem("key");
  return key ? { authorization: `Bearer ${key}` } : {};
};

async function call(path, options = {}) {
  const answer = await fetch(path, { ...options, headers: { ...headers(), ...options.headers } });
  if (answer.status === 401) { await askKey(); return call(path, options); }
  if (!answer.ok) throw new Error((await answer.json()).error);
  return answer;
}

const post = (path, body) => call(path, {
  method: "POST", body: JSON.stringify(body), headers: { "content-type": "application/json" } });

// Questions.

function ask(question, { input = false, yes = "OK" } = {}) {
  const dialog = $("ask");
  $("question").textContent = question;
  $("answer").hidden = !input;
  $("answer").value = "";
  $("yes").textContent = yes;
  dialog.returnValue = "";
  dialog.showModal();
  return new Promise(done => dialog.addEventListener("close", () => {
    done(dialog.returnValue === "yes" ? (input ? $("answer").value.trim() : true) : null);
  }, { once: true }));
}

let asking = null;
function askKey() {
  asking ??= ask("This server asks for a key with the role read.", { input: true }).then(key => {
    asking = null;
    if (!key) return new Promise(() => {});
    sessionStorage.setItem("key", key);
  });
  return asking;
}

// All streams.

function element(name, text, kind) {
  const node = document.createElement(name);
  if (text !== undefined) node.textContent = text;
  if (kind) node.className = kind;
  return node;
}

function card(info) {
  const item = element("li"), button = element("button");
  button.type = "button";
  button.dataset.stream = info.name;
  button.setAttribute("aria-current", info.name === chosen);
  button.append(element("strong", info.name));
  const badge = info.alarms.length ? element("span", info.alarms[0].kind, "badge alarm")
    : element("span", info.frozen ? "frozen" : several(info.domains, "domain"), "badge");
  button.append(badge, element("small", `trust ${percent(info.trust)} · differs ` +
    `${percent(info.differing)} · unknown ${percent(info.unknown)} · ${info.answered} images`));
  button.addEventListener("click", () => choose(info.name));
  item.append(button);
  return item;
}

function showStreams() {
  const wanted = $("filter").value.toLowerCase();
  const shown = [...streams.values()].filter(one => one.name.toLowerCase().includes(wanted))
    .sort((a, b) => b.alarms.length - a.alarms.length || a.name.localeCompare(b.name));
  $("streams").replaceChildren(...shown.slice(0, 300).map(card));
  $("count").textContent = shown.length > 300 ? `300 of ${shown.length}` : `${streams.size}`;
  $("none").hidden = streams.size > 0;
}

// One stream.

function choose(name) {
  chosen = name;
  location.hash = name ?? "";
  shownDomains = shownVersion = "";
  $("said").textContent = "";
  document.querySelector("main").classList.toggle("two", name !== null);
  $("detail").hidden = name === null;
  showStreams();
  listen();
}

function figure(name, value) {
  const box = element("div");
  box.append(element("dt", name), element("dd", value));
  return box;
}

function showDetail(info, timeline) {
  $("name").textContent = info.name;
  $("version").textContent = `${info.preset}, version ${info.version}`;
  $("freeze").textContent = info.frozen ? "Unfreeze" : "Freeze";
  const may = server?.roles.includes("operate");
  for (const button of $("actions").querySelectorAll("button")) button.disabled = !may;
  $("alarms").replaceChildren(...info.alarms.map(one =>
    element("li", `${one.kind}: ${one.text}`, "alarm")));
  $("figures").replaceChildren(
    figure("images answered", info.answered), figure("requests learned", info.learned),
    figure("waiting to learn", info.waiting), figure("not learned, no time", info.skipped),
    figure("trust", percent(info.trust)), figure("differs from source", percent(info.differing)),
    figure("unknown images", percent(info.unknown)),
    figure("mean top probability", percent(info.confidence)),
    figure("undone", info.rollbacks), figure("lost at restart", info.lost));
  const now = Date.now() / 1000;
  strip($("strip"), timeline, now);
  lines($("lines"), timeline, now);
  showDomains(info);
  const version = `${info.version} ${info.saved}`;
  if (version !== shownVersion) { shownVersion = version; showHistory(info.name); }
}

function showDomains(info) {
  const key = JSON.stringify(info.details);
  if (key === shownDomains) return;
  shownDomains = key;
  $("domains").replaceChildren(...info.details.map(one => {
    const item = element("li"), mark = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    mark.setAttribute("viewBox", "0 0 12 12");
    const dot = document.createElementNS(mark.namespaceURI, "circle");
    for (const [key, value] of [["cx", 6], ["cy", 6], ["r", 6], ["class", colour(one.domain)]])
      dot.setAttribute(key, value);
    mark.append(dot);
    item.append(mark, element("strong", `domain ${one.domain}`),
      element("span", `${several(one.images, "image")}, trust ${percent(one.trust)}, ` +
        several(one.learned, "update"), "quiet"));
    const hold = element("button", one.frozen ? "Unfreeze" : "Freeze");
    hold.type = "button";
    hold.disabled = !server?.roles.includes("operate");
    hold.addEventListener("click", () => work(one.frozen ? "unfreeze" : "freeze",
      { domain: one.domain }));
    item.append(hold);
    if (server?.thumbnails) pictures(item, info.name, one);
    return item;
  }));
  if (!info.details.length) $("domains").append(element("li", "none yet: the source answers", "quiet"));
}

function pictures(item, name, domain) {
  const row = element("div", undefined, "pictures");
  item.append(row);
  for (let at = 0; at < Math.min(6, domain.images); at++) {
    call(`/v1/streams/${name}/domains/${domain.domain}/thumbnails/${at}`)
      .then(answer => answer.blob()).then(blob => {
        const picture = element("img");
        picture.alt = `an image of domain ${domain.domain}`;
        picture.addEventListener("load", () => URL.revokeObjectURL(picture.src), { once: true });
        picture.src = URL.createObjectURL(blob);
        row.append(picture);
      }).catch(() => {});
  }
}

function sentence(event) {
  const { body, kind } = event;
  const where = body.domain ? ` (domain ${body.domain})` : "";
  if (kind === "domain") return body.text;
  if (kind === "began") return `${body.why}${where}` + (body.lost ? `, ${body.lost} updates lost` : "");
  if (kind === "checkpoint") return `checkpoint ${body.name}`;
  return `${kind}${where}${body.why ? `: ${body.why}` : ""}`;
}

async function showHistory(name) {
  const kinds = ["began", "domain", "checkpoint", "frozen", "unfrozen", "failed", "damaged"];
  const [rows, ...found] = await Promise.all([
    call(`/v1/streams/${name}/snapshots`).then(answer => answer.json()),
    ...kinds.map(kind => call(`/v1/streams/${name}/events?kind=${kind}&latest=true&most=15`)
      .then(answer => answer.json()))]);
  if (name !== chosen) return;
  const before = $("snapshots").value;
  $("snapshots").replaceChildren(...rows.map(row => {
    const time = new Date(row.made * 1000).toLocaleTimeString();
    const option = element("option", `${row.name ?? "snapshot"} · ${time} · ${row.learned} learned`);
    option.value = row.name ?? row.id;
    return option;
  }));
  if ([...$("snapshots").options].some(one => one.value === before)) $("snapshots").value = before;
  const events = found.flat().sort((a, b) => b.id - a.id);
  $("events").replaceChildren(...events.slice(0, 15).map(event => {
    const item = element("li");
    item.append(element("time", new Date(event.at * 1000).toLocaleTimeString()),
      element("span", sentence(event)));
    return item;
  }));
}

async function work(what, body, said) {
  const name = chosen;
  try {
    await post(`/v1/streams/${name}/${what}`, body);
    $("said").textContent = said ?? `${what}: done`;
    shownVersion = shownDomains = "";
  } catch (error) { $("said").textContent = error.message; }
}

$("freeze").addEventListener("click", () =>
  work(streams.get(chosen)?.frozen ? "unfreeze" : "freeze", {}));
$("checkpoint").addEventListener("click", async () => {
  const name = await ask("Name of the checkpoint", { input: true });
  if (name) work("checkpoints", { name }, `checkpoint ${name}: done`);
});
$("rollback").addEventListener("click", async () => {
  const list = $("snapshots");
  if (!list.value) { $("said").textContent = "There is no state on disk yet."; return; }
  const text = list.selectedOptions[0].textContent;
  if (await ask(`Go back to ${text}? What was learned since then is undone.`, { yes: "Roll back" }))
    work("rollback", { to: list.value });
});
$("reset").addEventListener("click", async () => {
  if (await ask(`Forget everything that ${chosen} has learned?`, { yes: "Reset" })) work("reset", {});
});
$("back").addEventListener("click", () => choose(null));
$("filter").addEventListener("input", showStreams);
$("key").addEventListener("click", async () => {
  const key = await ask("Use another key", { input: true });
  if (key) { sessionStorage.setItem("key", key); start(); }
});

// Live.

function take(message) {
  for (const info of message.streams) streams.set(info.name, info);
  for (const name of message.gone) streams.delete(name);
  if (message.streams.length || message.gone.length) showStreams();
  $("storage").hidden = message.storage === "whole";
  $("storage").textContent = `data folder: ${message.storage}`;
  if (message.detail && message.detail.name === chosen) showDetail(message.detail, message.timeline);
}

async function listen() {
  stopper?.abort();
  const mine = stopper = new AbortController();
  const query = chosen ? `?stream=${encodeURIComponent(chosen)}` : "";
  while (!mine.signal.aborted) {
    try {
      const answer = await call(`/v1/live${query}`, { signal: mine.signal });
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      let text = "";
      for (;;) {
        const { done, value } = await reader.read();
        if (done) break;
        text += value;
        const parts = text.split("\n\n");
        text = parts.pop();
        for (const part of parts) if (part.startsWith("data: ")) take(JSON.parse(part.slice(6)));
      }
    } catch (error) {
      if (mine.signal.aborted) return;
      if (String(error.message).includes("no stream")) { choose(null); return; }
      $("facts").textContent = "the server does not answer; trying again …";
    }
    await new Promise(done => setTimeout(done, 1000));
    if (!mine.signal.aborted) facts().catch(() => {});
  }
}

async function facts() {
  server = await (await call("/v1/server")).json();
  $("facts").textContent = `${server.model} · ${server.task}, ${server.outputs} classes · ` +
    (server.roles.includes("operate") ? "may operate" : "looking only");
}

async function start() {
  try { await facts(); } catch (error) { $("facts").textContent = error.message; }
  choose(chosen);
}
addEventListener("resize", () => { shownDomains = ""; });
start();
