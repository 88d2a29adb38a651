"use strict";
/* What the page knows of a graph. Things are numbers: nodes from 0 in program order, then groups; the first group is all. */

class Model {
  constructor(data) {
    this.data = data;
    this.nodes = data.nodes;
    this.count = data.nodes.length;
    this.groups = data.groups;
    this.root = this.count;
    this.parents = [
      ...data.nodes.map((node) => this.count + (node.g ?? 0)),
      ...data.groups.map((group) => (group.p < 0 ? -1 : this.count + group.p)),
    ];
    this.children = this.parents.map(() => []);
    this.users = data.nodes.map(() => []);
    this.sizes = new Int32Array(this.parents.length);
    this.firsts = new Int32Array(this.parents.length);
    this.byName = new Map();
    data.nodes.forEach((node, id) => {
      this.byName.set(node.n, id);
      for (const input of node.i) this.users[input].push(id);
    });
    for (let id = this.parents.length - 1; id >= 0; id -= 1) this.firsts[id] = this.isGroup(id) ? this.count : id;
    for (let id = 0; id < this.count; id += 1) {
      for (let each = id; each >= 0; each = this.parents[each]) {
        this.sizes[each] += 1;
        this.firsts[each] = Math.min(this.firsts[each], id);
      }
    }
    this.parents.forEach((parent, id) => parent >= 0 && this.children[parent].push(id));
    for (const list of this.children) list.sort((a, b) => this.firsts[a] - this.firsts[b]);
    this.overlays = data.overlays.map((overlay) => this.aggregate(overlay));
    this.expanded = new Set();
    this.texts = null;
  }

  isGroup(id) { return id >= this.count; }

  group(id) { return this.groups[id - this.count]; }

  /** What stands in the first line of its box. */
  label(id) {
    if (this.isGroup(id)) {
      const group = this.group(id);
      return group.k === "section" ? `nodes ${group.l}` : group.l || this.data.title;
    }
    const node = this.nodes[id];
    const opcode = this.data.opcodes[node.o];
    if (opcode === "placeholder" || opcode === "output") return node.n;
    if (opcode === "get_attr") return node.t ?? node.n;
    return node.k || (node.t ?? node.n).split(".").pop() || node.n;
  }

  /** What stands below. */
  note(id) {
    if (!this.isGroup(id)) {
      const node = this.nodes[id];
      return [node.n === this.label(id) ? "" : node.n, node.s ?? ""].filter(Boolean).join("  ");
    }
    const group = this.group(id);
    const size = `${this.sizes[id].toLocaleString("en")} node${this.sizes[id] === 1 ? "" : "s"}`;
    return [group.c, size].filter(Boolean).join("  ");
  }

  /** How many blocks a group of repeated blocks stands for; 0 for anything else. */
  repeats(id) { return this.isGroup(id) && this.group(id).k === "repeat" ? this.children[id].length : 0; }

  /** The name of a node where its module is seen: for what lies in the module, the path from there. */
  nameIn(id) {
    const node = this.nodes[id];
    const path = this.path(id);
    const isPath = ["call_module", "get_attr"].includes(this.opcode(id));
    const name = isPath && path && node.t?.startsWith(`${path}.`) ? node.t.slice(path.length + 1) : node.n;
    return name === this.label(id) ? "" : name;
  }

  opcode(id) { return this.isGroup(id) ? "group" : this.data.opcodes[this.nodes[id].o]; }

  path(id) {
    for (let each = id; each >= 0; each = this.parents[each]) {
      if (this.isGroup(each) && this.group(each).t) return this.group(each).t;
    }
    return "";
  }

  /** Groups around a thing, innermost first, without the one that is all. */
  around(id) {
    const list = [];
    for (let each = this.parents[id]; each >= 0 && each !== this.root; each = this.parents[each]) list.push(each);
    return list;
  }

  /** Unfolds what is unfolded in another graph, as far as there is such a group here too. */
  unfoldLike(other) {
    const key = (model, id) => JSON.stringify([...model.around(id), id].map((each) => [model.group(each).k, model.group(each).t, model.group(each).l]));
    const open = new Map(other.allGroups().map((id) => [key(other, id), other.expanded.has(id)]));
    for (const id of this.allGroups()) {
      const known = open.get(key(this, id));
      if (known === true) this.expanded.add(id);
      else if (known === false) this.expanded.delete(id);
    }
  }

  isVisible(id) { return this.around(id).every((group) => this.expanded.has(group)); }

  reveal(id) {
    const folded = this.around(id).filter((group) => !this.expanded.has(group));
    for (const group of folded) this.expanded.add(group);
    return folded.length > 0;
  }

  allGroups() {
    const list = [];
    for (let id = this.count + 1; id < this.parents.length; id += 1) list.push(id);
    return list;
  }

  /** Unfolds, from outside inward, as much as can be taken in at once. */
  unfoldSome(limit) {
    let shown = this.children[this.root].length;
    const queue = [...this.children[this.root]];
    // Nobody would understand why the last of several sections is unfolded, and not the first.
    const full = new Set();
    while (queue.length) {
      const id = queue.shift();
      if (!this.isGroup(id) || this.group(id).k === "repeat") continue;
      const isSection = this.group(id).k === "section";
      if (shown + this.children[id].length - 1 > limit || (isSection && full.has(this.parents[id]))) {
        full.add(this.parents[id]);
        continue;
      }
      shown += this.children[id].length - 1;
      this.expanded.add(id);
      queue.push(...this.children[id]);
    }
  }

  /** The rows of the tree: thing and depth. */
  rows() {
    const rows = [];
    const add = (id, depth) => {
      rows.push({ id, depth });
      if (this.expanded.has(id)) for (const child of this.children[id]) add(child, depth + 1);
    };
    for (const child of this.children[this.root]) add(child, 0);
    return rows;
  }

  aggregate(overlay) {
    const values = new Map(overlay.values);
    if (overlay.kind === "change") {
      // What is the same says nothing of a group in which something else is not.
      for (const [node, value] of overlay.values) {
        for (let each = this.parents[node]; each >= 0; each = this.parents[each]) {
          const old = values.get(each);
          if (old === undefined || old === "same") values.set(each, value);
          else if (value !== "same" && value !== old) values.set(each, "several");
        }
      }
    } else if (overlay.kind === "number") {
      for (const [node, value] of overlay.values) {
        for (let each = this.parents[node]; each >= 0; each = this.parents[each]) {
          const old = values.get(each);
          values.set(each, old === undefined ? value : overlay.aggregate === "max" ? Math.max(old, value) : old + value);
        }
      }
    } else {
      for (const [node, value] of overlay.values) {
        for (let each = this.parents[node]; each >= 0; each = this.parents[each]) {
          values.set(each, values.has(each) && values.get(each) !== value ? "several" : value);
        }
      }
    }
    return { ...overlay, all: values };
  }

  search(text) {
    const wanted = text.toLowerCase().split(/\s+/).filter(Boolean);
    if (!wanted.length) return [];
    this.texts ??= this.parents.map((_, id) => this.searchText(id));
    const found = [];
    this.texts.forEach((each, id) => id !== this.root && wanted.every((word) => each.includes(word)) && found.push(id));
    const first = wanted.join(" ");
    const rank = (id) => (this.name(id).toLowerCase() === first ? 0 : this.name(id).toLowerCase().startsWith(first) ? 1 : 2);
    return found.map((id) => [rank(id), id]).sort((a, b) => a[0] - b[0] || a[1] - b[1]).map(([, id]) => id);
  }

  name(id) {
    if (!this.isGroup(id)) return this.nodes[id].n;
    return (this.group(id).k === "module" && this.group(id).t) || this.label(id);
  }

  searchText(id) {
    if (this.isGroup(id)) return `${this.group(id).t} ${this.label(id)} ${this.group(id).c}`.toLowerCase();
    const node = this.nodes[id];
    return `${node.n} ${node.t ?? ""} ${node.k ?? ""} ${node.s ?? ""} ${this.opcode(id)} ${this.path(id)}`.slice(0, 2000).toLowerCase();
  }
}

const PREFIXES = [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"], [1, ""], [1e-3, "m"], [1e-6, "µ"], [1e-9, "n"]];

/** Returns a number as people read it. */
function numberText(value, unit) {
  if (typeof value === "string") return value;
  if (value === undefined || value === null) return "";
  if (value === 0) return unit ? `0 ${unit}` : "0";
  const size = Math.abs(value);
  if (!unit && size >= 0.001 && size < 10000) return String(Number(value.toPrecision(4)));
  const found = PREFIXES.find(([factor]) => size >= factor * 0.9995);
  if (!found || (!unit && size < 1)) return `${value.toExponential(2)}${unit ? ` ${unit}` : ""}`;
  const text = Number((value / found[0]).toPrecision(3));
  return `${text}${unit || found[1] ? " " : ""}${found[1]}${unit}`;
}
