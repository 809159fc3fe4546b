const data = JSON.parse(document.getElementById("data").textContent);
const machine = data.machine && new Machine(data.machine);

// --- The run: the steps that came with the page, and those that were played --------------------------------------------

const given = { steps: data.steps, actions: data.actions ?? [] };
let actions = given.actions.slice(); // of the whole run; those beyond `shared` were played
let states = []; // states[n]: after n steps; null where only a story is known
let at = 0; // the step that is looked at; 0 is the beginning

function shared() {
  let count = 0;
  while (count < given.actions.length && actions[count] === given.actions[count]) count++;
  return count;
}

const length = () => (machine ? actions.length : data.steps.length);

function execute() {
  if (machine) {
    states = [machine.initial()];
    for (const action of actions) states.push(machine.step(states.at(-1), action));
  } else {
    states = data.states ?? [];
  }
}

const variables = data.variables;
const labelOf = (variable, state) => variables[variable].labels[state[variable]];
const changed = (number) =>
  number > 0 && states[number] ? variables.map((_, v) => v).filter((v) => states[number][v] !== states[number - 1][v]) : [];

/** Step `number` as it is shown: who, what, and the arrows between the thread's lane and others. */
function described(number) {
  if (!machine) return data.steps[number - 1];
  const action = machine.actions[actions[number - 1]];
  const changes = changed(number);
  const arrows = [];
  let text = action.label;
  if (action.part === "read" || action.part === "retry") arrows.push({ lane: "table", out: false, says: "" });
  for (const variable of changes) {
    const arrow = data.arrows[variable];
    const now = labelOf(variable, states[number]);
    if (!arrow && !data.terse) text += `, ${variables[variable].name} ${now}`;
    if (!arrow) continue;
    arrows.push({ lane: arrow.lane, out: arrow.out, says: arrow.name === "status" ? now : "" });
    text += arrow.name === "status" ? `: ${labelOf(variable, states[number - 1])} → ${now}` : `, ${arrow.name} ${now}`;
  }
  return { thread: action.thread, text, arrows, says: action.says };
}

function play(action) {
  actions = [...actions.slice(0, at), action];
  execute();
  go(actions.length);
}

function go(number) {
  at = Math.max(0, Math.min(length(), number));
  show();
}

function undo() {
  if (actions.length <= shared() || actions.length === 0) return;
  actions = actions.slice(0, -1);
  execute();
  go(Math.min(at, actions.length));
}

function reset() {
  actions = given.actions.slice();
  execute();
  go(Math.min(at, length()));
}

// --- The address names the step and what was played ---------------------------------------------------------------------

function address() {
  const parts = [`step=${at}`];
  if (machine && (actions.length !== given.actions.length || shared() < actions.length)) {
    parts.push(`keep=${shared()}`, `play=${actions.slice(shared()).join(".")}`);
  }
  return `#${parts.join("&")}`;
}

/** Go where an address says; what it plays must be possible, or it is left out. */
function follow(hash) {
  const asked = new URLSearchParams(hash.slice(1));
  if (machine && asked.has("play")) {
    const run = [
      ...given.actions.slice(0, Number(asked.get("keep")) || 0),
      ...asked.get("play").split(".").filter(Boolean).map(Number),
    ];
    let state = machine.initial();
    actions = [];
    for (const action of run) {
      if (!machine.enabled(state).includes(action)) break;
      actions.push(action);
      state = machine.step(state, action);
    }
    execute();
  }
  const step = Number.parseInt(asked.get("step"), 10);
  go(Number.isNaN(step) ? (data.start ?? 0) : step);
}

// --- Drawing ------------------------------------------------------------------------------------------------------------

const $$ = (id) => document.getElementById(id);
const ROWS_AROUND = 40;

function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value !== false && value != null) made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children);
  return made;
}

function row(number, height) {
  const { thread, text, arrows } = described(number);
  const lane = data.lanes.indexOf(thread);
  const classes = ["row"];
  if (number > at) classes.push("future");
  if (number === at) classes.push("current");
  if (isFatal(number)) classes.push("fatal");
  if (machine && number > shared()) classes.push("played");
  const cells = data.lanes.map((name, column) =>
    element("span", { class: column === lane ? "lane acts" : "lane", style: `grid-column: ${column + 2}; grid-row: 1` }),
  );
  const lines = arrows.map(({ lane: to, out, says }) => {
    const other = data.lanes.indexOf(to);
    const [left, right] = [Math.min(lane, other), Math.max(lane, other)];
    const leftwards = (other < lane) === out;
    return element(
      "span",
      {
        class: ["arrow", leftwards && "left", lane > other && "from-right", !out && "reads"].filter(Boolean).join(" "),
        style: `grid-column: ${left + 2} / ${right + 3}`,
        title: out ? `${thread} to ${to}` : `${to} to ${thread}`,
      },
      ...(says ? [element("b", {}, says)] : []),
    );
  });
  return element(
    "div",
    { class: classes.join(" "), style: `top: ${(number - 1) * height}px`, "data-step": number, onclick: () => go(number) },
    element("span", { class: "number" }, String(number)),
    ...cells,
    ...lines,
    element("span", { class: "text", style: `grid-column: ${data.lanes.length + 2}`, title: text }, text),
  );
}

const isFatal = (number) => number === data.fatal && (!machine || number <= shared());

/** Only the rows in sight are in the document: a log can have tens of thousands. */
function drawRows(everything = false) {
  const pane = $$("lanes");
  const probe = element("div", { class: "row", style: "visibility: hidden" });
  $$("rows").append(probe);
  const height = probe.getBoundingClientRect().height;
  probe.remove();
  const from = everything ? 1 : Math.max(1, Math.floor(pane.scrollTop / height) - ROWS_AROUND);
  const to = everything
    ? length()
    : Math.min(length(), Math.ceil((pane.scrollTop + pane.clientHeight) / height) + ROWS_AROUND);
  $$("rows").style.height = `${length() * height}px`;
  const drawn = [];
  for (let number = from; number <= to; number++) drawn.push(row(number, height));
  $$("rows").replaceChildren(...drawn);
  $$("empty").hidden = length() > 0;
  return height;
}

function scrollToStep(height) {
  const pane = $$("lanes");
  const top = (at - 1) * height;
  const head = $$("head").getBoundingClientRect().height;
  if (top < pane.scrollTop || top + height + head > pane.scrollTop + pane.clientHeight) {
    pane.scrollTop = Math.max(0, top - pane.clientHeight / 2);
  }
}

function drawStep() {
  const parts = [];
  if (at === 0) {
    parts.push(element("p", {}, "The beginning: nothing has happened."));
  } else {
    const { thread, text, says } = described(at);
    parts.push(element("p", {}, element("strong", {}, thread), ` ${text}`));
    if (says) parts.push(element("p", {}, says));
    if (isFatal(at)) parts.push(element("p", { class: "blame" }, element("strong", {}, "★ The decisive step. "), data.sentence));
  }
  $$("step").replaceChildren(...parts);
}

function drawNext() {
  const choices = [];
  let actor = null;
  for (const number of machine.enabled(states[at])) {
    const action = machine.actions[number];
    if (action.thread !== actor) {
      actor = action.thread;
      choices.push(element("p", { class: "actor" }, actor));
    }
    const taken = actions[at] === number;
    choices.push(
      element(
        "button",
        { "data-action": number, onclick: () => play(number), title: action.says },
        `${taken ? "▶ " : ""}${action.label} `,
        element("small", {}, action.says),
      ),
    );
  }
  if (!choices.length) choices.push(element("p", {}, "Nothing. The run ends here."));
  $$("next").replaceChildren(...choices);
}

function drawProperties() {
  const broken = new Set(machine.broken(states[at]).map(({ name }) => name));
  $$("properties").replaceChildren(
    ...machine.properties.map(({ name, says }) =>
      element(
        "li",
        { class: broken.has(name) ? "bad" : "", "data-property": name, title: says },
        name,
        ...(broken.has(name) ? [element("br"), says] : []),
      ),
    ),
  );
}

function drawState() {
  if (!states[at]) {
    $$("state-section").hidden = true;
    return;
  }
  const changes = new Set(changed(at));
  const rows = variables.flatMap(({ name }, v) => {
    if (!changes.has(v) && !$$("all").checked) return [];
    const before = changes.has(v) ? labelOf(v, states[at - 1]) : "";
    const cells = [name, labelOf(v, states[at]), before].map((cell) => element("td", {}, cell));
    return [element("tr", { class: changes.has(v) ? "changed" : "" }, ...cells)];
  });
  $$("state").tBodies[0].replaceChildren(...rows);
}

// --- Saving: ITF JSON, as `kvlatch.spec.traces` writes it -----------------------------------------------------------------

function trace() {
  const last = machine.broken(states.at(-1))[0];
  const head = { ...data.itf, property: last ? last.name : "", description: `played: ${actions.length} steps` };
  const labels = (state) => Object.fromEntries(variables.map(({ name }, v) => [name, labelOf(v, state)]));
  const written = states.map((state, index) => {
    const action = index > 0 ? machine.actions[actions[index - 1]] : null;
    const picks = action ? Object.entries(action.arguments).map(([name, value]) => [name, { "#bigint": String(value) }]) : [];
    return {
      "#meta": { index, ...(action ? { thread: action.thread } : {}) },
      "mbt::actionTaken": action ? action.name : "init",
      "mbt::nondetPicks": Object.fromEntries(picks),
      ...labels(state),
    };
  });
  return JSON.stringify({
    "#meta": head,
    vars: ["mbt::actionTaken", "mbt::nondetPicks", ...variables.map(({ name }) => name)],
    ...(last && last.kind === "liveness" ? { loop: states.length - 1 } : {}),
    states: written,
  });
}

function save() {
  const link = element("a", {
    href: URL.createObjectURL(new Blob([trace()], { type: "application/json" })),
    download: `${data.itf.design}.played.itf.json`,
  });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href));
}

// --- Putting it together ---------------------------------------------------------------------------------------------------

let addressing;

function show() {
  clearTimeout(addressing); // a browser refuses an address for every step of a held-down key
  if (location.protocol !== "about:") addressing = setTimeout(() => history.replaceState(null, "", address()), 150);
  $$("where").textContent = `step ${at.toLocaleString("en")} of ${length().toLocaleString("en")}`;
  $$("jump").max = length();
  $$("first").disabled = $$("back").disabled = at === 0;
  $$("last").disabled = $$("forth").disabled = at === length();
  scrollToStep(drawRows());
  drawRows();
  drawStep();
  drawState();
  if (machine) {
    $$("undo").disabled = actions.length <= shared();
    $$("reset").disabled = key(actions) === key(given.actions);
    drawNext();
    drawProperties();
    if ($$("map-section").open) drawMap();
  }
}

const KEYS = {
  ArrowLeft: () => go(at - 1), ArrowRight: () => go(at + 1), k: () => go(at - 1), j: () => go(at + 1),
  Home: () => go(0), End: () => go(length()), f: () => data.fatal && go(data.fatal), u: undo, r: reset,
};

$$("heading").textContent = data.heading;
$$("sentence").textContent = data.sentence;
$$("sentence").classList.toggle("bad", data.fatal !== null);
document.body.classList.toggle("framed", Boolean(data.framed));
if (!data.framed) $$("again").append("To make this page again: ", element("code", {}, data.again));
document.body.classList.toggle("still", !machine);
$$("map-section").open = Boolean(data.map);
$$("fatal").hidden = data.fatal === null;
document.documentElement.style.setProperty("--lanes", data.lanes.length);
$$("head").append(...["#", ...data.lanes, "what happens"].map((name) => element("span", {}, name)));
for (const [id, act] of Object.entries({
  first: () => go(0), back: () => go(at - 1), forth: () => go(at + 1), last: () => go(length()),
  fatal: () => go(data.fatal), undo, reset, save,
})) $$(id).addEventListener("click", act);
$$("jump").addEventListener("change", (event) => go(Number(event.target.value) || 0));
$$("all").addEventListener("change", drawState);
$$("lanes").addEventListener("scroll", () => drawRows());
$$("map-section").addEventListener("toggle", () => $$("map-section").open && drawMap());
addEventListener("resize", () => drawRows());
addEventListener("beforeprint", () => drawRows(true));
addEventListener("afterprint", () => drawRows());
addEventListener("hashchange", () => follow(location.hash));
addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.tagName === "INPUT") return;
  const act = KEYS[event.key];
  if (!act) return;
  event.preventDefault();
  act();
});
execute();
follow(location.hash);
