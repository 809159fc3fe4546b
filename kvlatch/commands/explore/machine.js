"use strict";

// --- The machine: what `machine.py` wrote, evaluated -----------------------------------------------------------------

/** A machine that runs. A state is an array: the number of each variable's label. */
class Machine {
  constructor({ variables, merge, actions, properties }) {
    Object.assign(this, { variables, merge, actions, properties });
  }

  initial() {
    return this.variables.map(() => 0);
  }

  holds(term, state) {
    switch (term[0]) {
      case "is": return state[term[1]] === term[2];
      case "same": return state[term[1]] === state[term[2]];
      case "not": return !this.holds(term[1], state);
      case "all": return term.slice(1).every((part) => this.holds(part, state));
      case "any": return term.slice(1).some((part) => this.holds(part, state));
      case "stores": return this.merge[state[term[1]]][term[2]] === term[3];
    }
    throw new Error(`not a formula: ${term[0]}`);
  }

  value(term, state) {
    switch (term[0]) {
      case "label": return term[1];
      case "read": return state[term[1]];
      case "where": return this.value(this.holds(term[1], state) ? term[2] : term[3], state);
      case "merged": return this.merge[state[term[1]]][term[2]] ?? state[term[1]];
    }
    throw new Error(`not a value: ${term[0]}`);
  }

  /** The numbers of the actions that can happen. */
  enabled(state) {
    return this.actions.flatMap((action, number) => (this.holds(action.guard, state) ? [number] : []));
  }

  step(state, number) {
    const after = state.slice();
    for (const [variable, term] of this.actions[number].updates) after[variable] = this.value(term, state);
    return after;
  }

  /** The properties for which the state is bad; for liveness, it is one that no fair action leaves. */
  broken(state) {
    const stuck = !this.enabled(state).some((number) => this.actions[number].fair);
    return this.properties.filter(
      ({ bad, kind }) => bad.some((formula) => this.holds(formula, state)) && (kind === "safety" || stuck),
    );
  }

  /** Every reachable state, breadth first, up to `limit`: key -> {state, depth, from, action, next}. */
  reach(limit) {
    const first = this.initial();
    const found = new Map([[key(first), { state: first, depth: 0, from: null, action: null, next: [] }]]);
    let complete = true;
    for (const [name, node] of found) {
      if (found.size >= limit) {
        complete = false;
        break;
      }
      for (const action of this.enabled(node.state)) {
        const state = this.step(node.state, action);
        const to = key(state);
        node.next.push(to);
        if (!found.has(to)) found.set(to, { state, depth: node.depth + 1, from: name, action, next: [] });
      }
    }
    return { found, complete };
  }
}

const key = (state) => state.join();
