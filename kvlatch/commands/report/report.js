"use strict";

const { machines, runs } = JSON.parse(document.getElementById("runs").textContent);
const shell = JSON.parse(document.getElementById("shell").textContent);

/** The page of a run in a frame, made when it is looked at first. */
function lanes(details) {
  if (!details.open || details.querySelector("iframe")) return;
  const { machine: number, ...run } = runs[details.dataset.run];
  const machine = machines[number];
  const data = machine ? { ...run, machine, variables: machine.variables } : run;
  const frame = document.createElement("iframe");
  frame.title = data.heading;
  frame.srcdoc = shell.replace("@data@", () => JSON.stringify({ ...data, framed: true }).replaceAll("<", "\\u003c"));
  details.querySelector(".without").replaceWith(frame);
}

/** A link to a finding opens it. */
function follow() {
  const finding = document.getElementById(location.hash.slice(1));
  const details = finding?.querySelector("details.lanes");
  if (details) details.open = true;
}

const found = [...document.querySelectorAll("details.lanes")];
for (const details of found) details.addEventListener("toggle", () => lanes(details));
if (found.length) {
  found[0].open = true;
  lanes(found[0]);
}
addEventListener("hashchange", follow);
follow();
