// --- The map: the state graph, or the part of it around the run ---------------------------------------------------------

const MAP_STATES = 1500;
const SEARCHED_STATES = 20000;
const SVG = "http://www.w3.org/2000/svg";
let graph = null;

function svg(tag, attributes, text) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text) made.textContent = text;
  return made;
}

/** The states to draw: all that are reachable, or the run's with what each can lead to. */
function partOf({ found, complete }) {
  if (complete && found.size <= MAP_STATES) return found;
  const nodes = new Map();
  states.forEach((state, depth) => {
    if (!nodes.has(key(state))) nodes.set(key(state), { state, depth, next: [] });
  });
  for (const node of [...nodes.values()]) {
    for (const action of machine.enabled(node.state)) {
      const state = machine.step(node.state, action);
      const to = key(state);
      node.next.push(to);
      if (!nodes.has(to)) nodes.set(to, { state, depth: node.depth + 1, next: [] });
    }
  }
  return nodes;
}

function explain({ found, complete }) {
  const bad = [...found.values()].filter(({ state }) => machine.broken(state).length).length;
  const count = `${complete ? "" : "more than "}${found.size.toLocaleString("en")} reachable states, ${bad.toLocaleString("en")} of them bad (✗)`;
  const drawn = complete && found.size <= MAP_STATES ? "All are drawn" : "Too many to draw: shown are the run and what each of its states can lead to";
  return `${count}. ${drawn}; the run is the thick path, lower is later.`;
}

/** What one of two designs can reach and the other cannot, as sets of keys. */
function compare({ found, complete }) {
  const other = new Machine({ ...data.machine, ...data.against.machine }).reach(SEARCHED_STATES);
  const here = new Set([...found.keys()].filter((name) => !other.found.has(name)));
  const there = [...other.found.keys()].filter((name) => !found.has(name)).length;
  const sure = complete && other.complete ? "" : ` The search stopped at ${SEARCHED_STATES.toLocaleString("en")} states, so these are not all.`;
  $$("against-says").textContent =
    `${here.size.toLocaleString("en")} states can be reached here and not in ${data.against.name} (dashed), ` +
    `${there.toLocaleString("en")} there and not here.${sure}`;
  return here;
}

function drawMap() {
  graph ??= machine.reach(SEARCHED_STATES);
  graph.only ??= data.against ? compare(graph) : new Set();
  $$("map-says").textContent = graph.says ??= explain(graph);
  const nodes = partOf(graph);
  const layers = [];
  for (const [name, node] of nodes) (layers[node.depth] ??= []).push(name);
  const GAP = 20;
  const widest = Math.max(...layers.map((layer) => layer.length));
  const places = new Map();
  const parents = new Map();
  for (const [from, { next }] of nodes) for (const to of next) parents.set(to, [...(parents.get(to) ?? []), from]);
  layers.forEach((layer, depth) => {
    const centre = (name) => {
      const above = (parents.get(name) ?? []).flatMap((from) => (nodes.get(from).depth === depth - 1 ? [places.get(from).x] : []));
      return above.reduce((sum, x) => sum + x, 0) / (above.length || 1);
    };
    const order = layer.map((name) => [centre(name), name]).sort((a, b) => a[0] - b[0]);
    const left = 48 + ((widest - layer.length) * GAP) / 2;
    order.forEach(([, name], index) => places.set(name, { x: left + index * GAP, y: 20 + depth * 34 }));
  });
  const run = new Set(states.map(key));
  const picture = svg("svg", { width: 70 + widest * GAP, height: 40 + layers.length * 34, role: "img", "aria-label": $$("map-says").textContent });
  for (const [name, { next }] of nodes) {
    for (const to of next) {
      if (!places.has(to)) continue;
      const [a, b] = [places.get(name), places.get(to)];
      picture.append(svg("line", { x1: a.x, y1: a.y, x2: b.x, y2: b.y }));
    }
  }
  states.slice(1).forEach((state, index) => {
    const [a, b] = [places.get(key(states[index])), places.get(key(state))];
    if (a && b) picture.append(svg("line", { class: "run", x1: a.x, y1: a.y, x2: b.x, y2: b.y }));
  });
  layers.forEach((_, depth) => picture.append(svg("text", { class: "layer", x: 30, y: 23 + depth * 34 }, String(depth))));
  for (const [name, { state }] of nodes) {
    const { x, y } = places.get(name);
    const bad = machine.broken(state);
    const classes = ["node", run.has(name) && "run", bad.length && "bad", graph.only.has(name) && "only", name === key(states[at]) && "here"];
    const node = svg("circle", { cx: x, cy: y, r: 7, class: classes.filter(Boolean).join(" ") });
    node.append(svg("title", {}, bad.length ? `breaks ${bad.map((one) => one.name).join(", ")}` : "keeps every property"));
    node.addEventListener("click", () => visit(name));
    picture.append(node);
    if (bad.length) picture.append(svg("text", { x, y: y + 3 }, "✗"));
  }
  $$("map").replaceChildren(picture);
  const here = places.get(key(states[at]));
  if (here) $$("map").scrollTo(here.x - $$("map").clientWidth / 2, here.y - $$("map").clientHeight / 2);
}

/** Go to a state of the map: a step of the run, or the end of a shortest run to it. */
function visit(name) {
  const step = states.findIndex((state) => key(state) === name);
  if (step >= 0) return go(step);
  if (!graph.found.has(name)) return undefined;
  actions = [];
  for (let node = graph.found.get(name); node.from !== null; node = graph.found.get(node.from)) actions.unshift(node.action);
  execute();
  return go(actions.length);
}
