/* What stands around the picture: tree, details, table, search, legend. Text goes in as text, never as HTML. */

const ROW = 24;

function element(name, properties = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (key === "class") made.className = value;
    else if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (value !== undefined && value !== false) made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined && child !== ""));
  return made;
}

/** Rows of one height of which only those in sight exist. */
class Rows {
  constructor(scroller, make) {
    this.scroller = scroller;
    this.holder = scroller.querySelector(".rows");
    this.make = make;
    this.rows = [];
    scroller.addEventListener("scroll", () => this.show(), { passive: true });
    new ResizeObserver(() => this.show()).observe(scroller);
  }

  set(rows) {
    this.rows = rows;
    this.holder.style.height = `${rows.length * ROW}px`;
    this.show();
  }

  show() {
    const first = Math.max(0, Math.floor(this.scroller.scrollTop / ROW) - 6);
    const last = Math.min(this.rows.length, first + Math.ceil(this.scroller.clientHeight / ROW) + 12);
    const made = [];
    for (let at = first; at < last; at += 1) {
      const row = this.make(this.rows[at], at);
      row.style.top = `${at * ROW}px`;
      made.push(row);
    }
    this.holder.replaceChildren(...made);
  }

  reveal(at) {
    const { scrollTop, clientHeight } = this.scroller;
    if (at < 0) return;
    if (at * ROW < scrollTop) this.scroller.scrollTop = at * ROW - ROW;
    else if ((at + 1) * ROW > scrollTop + clientHeight) this.scroller.scrollTop = (at + 2) * ROW - clientHeight;
    this.show();
  }
}

class Tree {
  constructor(pane, app) {
    this.app = app;
    this.pane = pane;
    this.rows = new Rows(pane, (row, at) => this.make(row, at));
    pane.addEventListener("keydown", (event) => this.key(event));
  }

  update() {
    this.list = this.app.model.rows();
    this.rows.set(this.list);
  }

  make({ id, depth }, at) {
    const { model } = this.app;
    const isGroup = model.isGroup(id);
    const open = model.expanded.has(id);
    const value = this.app.colouring?.text(id);
    const chip = element("span", { class: "chip" });
    chip.style.background = this.app.colouring?.colour(id) ?? `var(--${isGroup ? "folded" : model.opcode(id)})`;
    const row = element(
      "div",
      {
        class: `row${id === this.app.selected ? " selected" : ""}`, role: "treeitem", id: `row-${id}`,
        "aria-level": depth + 1, "aria-expanded": isGroup ? String(open) : undefined,
        "aria-selected": String(id === this.app.selected),
      },
      element("span", { class: "twist" }, isGroup ? (open ? "▾" : "▸") : ""),
      chip,
      element("span", { class: "label" }, printable(model.label(id).slice(0, 200))),
      model.repeats(id) ? element("span", { class: "badge" }, `×${model.repeats(id)}`) : null,
      isGroup && value ? null : element("span", { class: "note" }, printable((isGroup ? model.note(id) : model.nameIn(id)).slice(0, 200))),
      value ? element("span", { class: "value" }, value) : null,
    );
    const told = isGroup ? [model.name(id), model.note(id)] : [model.nodes[id].n, model.nodes[id].t, model.nodes[id].s];
    row.title = [...new Set(told.filter(Boolean).map((text) => printable(text.slice(0, 200))))].join("\n");
    row.style.paddingLeft = `${6 + depth * 14}px`;
    row.addEventListener("click", (event) => {
      const isTwist = event.target.classList.contains("twist");
      if (isGroup && (isTwist || event.detail === 2)) this.app.toggle(id);
      if (!isTwist && event.detail < 2) this.app.select(id, { move: true });
    });
    row.dataset.at = at;
    return row;
  }

  at(id) { return this.list.findIndex((row) => row.id === id); }

  show(id) {
    this.rows.reveal(this.at(id));
    this.pane.setAttribute("aria-activedescendant", `row-${id}`);
  }

  key(event) {
    const { app } = this;
    const at = this.at(app.selected);
    const move = (to) => this.list[to] && app.select(this.list[to].id, { move: true });
    const { id } = this.list[at] ?? {};
    const isGroup = id !== undefined && app.model.isGroup(id);
    const actions = {
      ArrowDown: () => move(Math.min(at + 1, this.list.length - 1)),
      ArrowUp: () => move(Math.max(at - 1, 0)),
      Home: () => move(0),
      End: () => move(this.list.length - 1),
      ArrowRight: () => (isGroup && !app.model.expanded.has(id) ? app.toggle(id) : move(at + 1)),
      ArrowLeft: () => {
        if (isGroup && app.model.expanded.has(id)) app.toggle(id);
        else if (id !== undefined && app.model.around(id).length) app.select(app.model.around(id)[0], { move: true });
      },
      Enter: () => isGroup && app.toggle(id),
      " ": () => isGroup && app.toggle(id),
    };
    if (!actions[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    event.stopPropagation();
    actions[event.key]();
  }
}

class Details {
  constructor(pane, app) {
    this.pane = pane;
    this.app = app;
  }

  show(id) {
    const parts = id < 0 ? this.ofGraph() : this.app.model.isGroup(id) ? this.ofGroup(id) : this.ofNode(id);
    this.pane.replaceChildren(...parts.filter(Boolean));
    this.pane.scrollTop = 0;
  }

  facts(entries) {
    const list = element("dl");
    for (const [name, value] of entries) {
      if (value === undefined || value === null || value === "") continue;
      list.append(element("dt", {}, name), element("dd", {}, value));
    }
    return list;
  }

  section(title, ...content) {
    const kept = content.filter(Boolean);
    return kept.length ? element("section", {}, element("h3", {}, title), ...kept) : null;
  }

  links(ids, note = null) {
    if (!ids.length) return null;
    const list = element("ul", { class: "links" });
    for (const id of ids.slice(0, 200)) list.append(element("li", {}, this.link(id, note && note(id))));
    if (ids.length > 200) list.append(element("li", {}, `and ${ids.length - 200} more`));
    return list;
  }

  link(id, said = null) {
    const { model } = this.app;
    const text = model.isGroup(id) ? model.name(id) : model.nodes[id].n;
    const note = said !== null ? printable(said) : model.isGroup(id) ? model.note(id) : [model.label(id) === text ? "" : model.label(id), model.nodes[id].s].filter(Boolean).join("  ");
    return element("button", { class: "link", onclick: () => this.app.select(id, { move: true }) },
      text, element("small", {}, `  ${note.slice(0, 200)}`));
  }

  values(id) {
    const entries = this.app.model.overlays.filter((overlay) => overlay.kind !== "change").map((overlay) => [overlay.title, numberText(overlay.all.get(id), overlay.unit)]);
    return this.section("Numbers", entries.some(([, text]) => text) ? this.facts(entries) : null);
  }

  ofNode(id) {
    const { model } = this.app;
    const node = model.nodes[id];
    const opcode = model.opcode(id);
    const args = node.a?.length ? this.facts(node.a) : null;
    const stacks = node.f ?? [];
    const guards = model.data.guards.filter(([, line]) => line && stacks.some((stack) => stack.some(([file, number]) => line.startsWith(`${file}:${number} `) || line === `${file}:${number}`)));
    return [
      element("h2", {}, node.n),
      element("p", { class: "kind" }, this.swatch(opcode), opcode, node.k ? element("small", {}, `  ${node.k}`) : null),
      this.facts([["target", node.t], ["shape", node.s], ["module", model.path(id)], ["regions", (node.r ?? []).join(", ")],
        ["effects", node.e]]),
      ...this.becoming(node),
      this.section("Arguments", args),
      this.section("Module", node.d ? element("pre", {}, node.d) : null),
      this.section(`Inputs (${node.i.length})`, this.links(node.i)),
      this.section(`Used by (${model.users[id].length})`, this.links(model.users[id])),
      this.values(id),
      this.section("Code", this.code(node)),
      ...stacks.map((stack, at) => this.section(stacks.length > 1 ? `Source, origin ${at + 1} of ${stacks.length}` : "Source", this.stack(stack))),
      this.section("Made or changed by", node.h ? element("ol", {}, ...node.h.map((text) => element("li", {}, text))) : null),
      this.section("Guards asked there", this.guards(guards)),
    ];
  }

  /** What became of a node in this step, and what becomes of it in the next one. */
  becoming(node) {
    const { app } = this;
    const [kind, before, details] = node.x ?? ["same", [], []];
    const parts = [];
    if (kind !== "same") {
      const list = element("ul", { class: "links" }, ...before.map(([name, text]) => element("li", {},
        element("button", { class: "link", title: "Show it in the step before", onclick: () => app.showBefore(name) }, printable(text.slice(0, 300))))));
      parts.push(this.section(before.length > 1 ? "Fused from" : before.length ? `${kind === "moved" ? "Moved" : "Changed"} from` : "Added in this step",
        before.length ? list : null, details.length ? element("ul", { class: "plain" }, ...details.map((text) => element("li", {}, text))) : before.length ? null : element("p", {}, "by this step")));
    }
    const next = app.nextGraph();
    if (next) {
      parts.push(this.section("In the next step", node.y === undefined
        ? element("p", {}, "It is gone.")
        : element("button", { class: "link", onclick: () => app.showAfter(node.y) }, node.y)));
    }
    return parts;
  }

  /** What the step did to the whole graph. */
  changes() {
    const { model } = this.app;
    const { gone = [], before } = model.data;
    if (!before || !this.app.stepChanges()) return null;
    const changed = model.nodes.map((node, id) => [node.x?.[0] ?? "same", id]).filter(([kind]) => kind !== "same");
    const kinds = ["fused", "added", "changed", "moved"].map((kind) => [kind, changed.filter(([each]) => each === kind).map(([, id]) => id)]);
    const parts = kinds.filter(([, ids]) => ids.length).map(([kind, ids]) => element("details", { open: ids.length <= 60 },
      element("summary", {}, this.swatch(`was-${kind}`), `${ids.length.toLocaleString("en")} ${kind}`), this.links(ids, (id) => this.change(id))));
    if (gone.length) {
      parts.push(element("details", {}, element("summary", {}, this.swatch("was-removed"), `${gone.length.toLocaleString("en")} removed`),
        element("ul", { class: "links" }, ...gone.slice(0, 200).map((name) => element("li", {},
          element("button", { class: "link", title: "Show it in the step before", onclick: () => this.app.showBefore(name) }, name)))),
        gone.length > 200 ? element("p", {}, `and ${gone.length - 200} more`) : null));
    }
    const section = this.section("What this step did", ...(parts.length ? parts : [element("p", {}, "Every node is the same.")]));
    section.classList.add("changes");
    return section;
  }

  /** What the step did to a node: what it was made of, or what is different. */
  change(id) {
    const [kind, before, details] = this.app.model.nodes[id].x;
    const origins = before.map(([, text]) => text).join(" + ");
    return kind === "changed" && details.length ? details.join("; ") : origins || details.join("; ");
  }

  swatch(name) {
    const chip = element("span", { class: "chip" });
    chip.style.background = `var(--${name})`;
    return chip;
  }

  code(node) {
    if (!node.c) return null;
    const { code } = this.app.model.data;
    const block = element("pre", { class: "code" });
    for (let line = Math.max(1, node.c - 2); line <= Math.min(code.length, node.c + 2); line += 1) {
      block.append(element("span", { class: line === node.c ? "here" : "" }, `${String(line).padStart(4)}  ${code[line - 1].replace(/^ {4}/, "").slice(0, 2000)}`));
    }
    return block;
  }

  stack(stack) {
    const block = element("div", { class: "stack" });
    stack.forEach(([file, line, name, text], at) => {
      const frame = element("div", {}, element("code", { class: at ? "" : "here" }, text || "(the source is not at hand)"),
        element("small", {}, `${file}:${line} in ${name}`));
      block.append(frame);
    });
    return block;
  }

  guards(list) {
    if (!list.length) return null;
    return element("ul", { class: "guards" }, ...list.map(([text, line, source]) =>
      element("li", {}, element("code", {}, text), line ? element("small", {}, `${line}${source ? `: ${source}` : ""}`) : null)));
  }

  ofGroup(id) {
    const { model } = this.app;
    const group = model.group(id);
    const open = model.expanded.has(id);
    return [
      element("h2", {}, model.name(id)),
      element("p", { class: "kind" }, this.swatch("folded"), { module: "module", repeat: `${model.repeats(id)} blocks that are the same`, section: "section of a long program" }[group.k] ?? ""),
      this.facts([["class", group.c], ["module", model.path(id)], ["nodes", model.sizes[id].toLocaleString("en")]]),
      element("p", {}, element("button", { onclick: () => this.app.toggle(id) }, open ? "Fold" : "Unfold")),
      this.values(id),
      this.section(`Inside (${model.children[id].length})`, this.links(model.children[id])),
    ];
  }

  ofGraph() {
    const { model } = this.app;
    const counts = new Map();
    model.nodes.forEach((node) => counts.set(model.data.opcodes[node.o], (counts.get(model.data.opcodes[node.o]) ?? 0) + 1));
    const list = element("ul", { class: "opcodes" });
    for (const opcode of model.data.opcodes) {
      if (counts.has(opcode)) list.append(element("li", {}, this.swatch(opcode), `${opcode}  `, element("small", {}, counts.get(opcode).toLocaleString("en"))));
    }
    return [
      element("h2", {}, model.data.title),
      this.facts([["nodes", model.count.toLocaleString("en")], ["modules", model.groups.filter((group) => group.k === "module").length.toLocaleString("en")]]),
      this.changes(),
      model.count ? this.section("Opcodes", list) : element("p", {}, "The graph has no nodes."),
      this.values(model.root),
      this.section(`Guards (${model.data.guards.length})`, this.guards(model.data.guards) ?? element("p", {}, "Nothing was assumed about the inputs, as far as is known.")),
    ];
  }
}

class Table {
  constructor(pane, app) {
    this.app = app;
    this.head = pane.querySelector(".head");
    this.pane = pane;
    this.rows = new Rows(pane.querySelector(".scroll"), (id, at) => this.make(id, at));
    pane.querySelector(".scroll").addEventListener("scroll", (event) => { this.head.scrollLeft = event.target.scrollLeft; });
    this.sort = null;
    pane.querySelector(".scroll").addEventListener("keydown", (event) => {
      const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
      if (!step) return;
      event.preventDefault();
      event.stopPropagation();
      const at = this.order.indexOf(app.selected) + step;
      if (this.order[at] !== undefined) app.select(this.order[at], { move: true });
    });
  }

  setModel(model) {
    this.columns = [
      { title: "name", width: 150, text: (id) => model.nodes[id].n },
      { title: "opcode", width: 110, text: (id) => model.opcode(id) },
      { title: "target", width: 200, text: (id) => model.nodes[id].t ?? "" },
      { title: "shape", width: 200, text: (id) => model.nodes[id].s ?? "" },
      { title: "module", width: 150, text: (id) => model.path(id) },
      ...model.overlays.map((overlay) => ({
        title: overlay.title, width: Math.max(110, Math.min(260, 40 + 8 * overlay.title.length)), number: overlay.kind === "number",
        value: (id) => overlay.all.get(id), text: (id) => numberText(overlay.all.get(id), overlay.unit),
      })),
    ];
    this.sort = null;
    this.order = model.nodes.map((_, id) => id);
    this.header();
    this.rows.set(this.order);
  }

  header() {
    this.head.replaceChildren(...this.columns.map((column, at) => {
      const sorted = this.sort && Math.abs(this.sort) === at + 1 ? (this.sort > 0 ? "ascending" : "descending") : "none";
      const cell = element("button", { class: column.number ? "number" : "", role: "columnheader", "aria-sort": sorted, title: `Sort by ${column.title}`, onclick: () => this.sortBy(at) },
        `${column.title}${sorted === "none" ? "" : sorted === "ascending" ? " ▲" : " ▼"}`);
      cell.style.width = `${column.width}px`;
      return cell;
    }));
  }

  sortBy(at) {
    const first = this.columns[at].number ? -(at + 1) : at + 1;
    this.sort = this.sort === first ? -first : this.sort === -first ? null : first;
    const ids = this.app.model.nodes.map((_, id) => id);
    if (this.sort) {
      const column = this.columns[Math.abs(this.sort) - 1];
      const sign = Math.sign(this.sort);
      const key = ids.map((id) => (column.value ?? column.text)(id));
      ids.sort((a, b) => {
        const missing = (key[a] === undefined || key[a] === "") - (key[b] === undefined || key[b] === "");
        if (missing) return missing;
        return sign * (key[a] < key[b] ? -1 : key[a] > key[b] ? 1 : 0) || a - b;
      });
    }
    this.order = ids;
    this.header();
    this.rows.set(ids);
    this.rows.scroller.scrollTop = 0;
  }

  make(id) {
    const row = element("div", { class: `row${id === this.app.selected ? " selected" : ""}`, role: "row", onclick: () => this.app.select(id, { move: true }) });
    for (const column of this.columns) {
      const text = column.text(id);
      const cell = element("span", { role: "cell", class: column.number ? "number" : "" }, printable(String(text).slice(0, 200)));
      cell.style.width = `${column.width}px`;
      if (column.number && this.app.colouring?.title === column.title) {
        cell.style.background = this.app.colouring.colour(id) ?? "";
        cell.style.color = this.app.colouring.ink(id) ?? "";
      }
      row.append(cell);
    }
    return row;
  }

  show(id) { this.rows.reveal(this.order.indexOf(id)); }

  set shown(shown) {
    this.pane.hidden = !shown;
    if (shown) this.rows.show();
  }
}

/** The colours of an overlay. */
class Colouring {
  constructor(overlay, model, isDark) {
    this.overlay = overlay;
    this.title = overlay.title;
    this.model = model;
    this.scale = overlay.kind === "number" ? this.numbers(isDark) : overlay.kind === "change" ? this.changes() : this.words();
  }

  numbers(isDark) {
    this.ramp = (part) => (isDark ? vendor.interpolateViridis(0.15 + 0.85 * part) : vendor.interpolateYlGnBu(0.95 * part));
    this.setRange(this.overlay.values.map(([id]) => id));
    return (value) => this.scaled(Math.max(this.low, Math.min(value, this.high)));
  }

  /** Spreads the colours over the values of what is visible. */
  setRange(ids) {
    if (this.overlay.kind !== "number") return;
    let [low, high] = [0, -Infinity];
    for (const id of ids) {
      const value = this.overlay.all.get(id);
      if (value === undefined) continue;
      low = Math.min(low, value);
      high = Math.max(high, value);
    }
    this.low = low;
    this.high = high > low ? high : low + 1;
    this.scaled = vendor.scaleSequentialSqrt([this.low, this.high], this.ramp);
  }

  changes() {
    const style = getComputedStyle(document.documentElement);
    const of = (word) => style.getPropertyValue(`--was-${word}`).trim();
    // The whole graph is no box.
    const words = new Set([...this.overlay.all].filter(([id]) => id !== this.model.root).map(([, word]) => word));
    this.legend = ["fused", "added", "changed", "moved", "same", "several"].filter((word) => words.has(word)).map((word) => [word, of(word)]);
    const colours = new Map(this.legend);
    return (value) => colours.get(value) ?? of("same");
  }

  words() {
    const words = [...new Set(this.overlay.values.map(([, value]) => value))].sort();
    const colours = vendor.schemeTableau10;
    const of = new Map(words.map((word, at) => [word, colours[at % colours.length]]));
    if (of.has("supported")) of.set("supported", "#59a14f");
    this.legend = [...of];
    return (value) => of.get(value) ?? "#8a8a8a";
  }

  colour(id) {
    const value = this.overlay.all.get(id);
    return value === undefined ? null : this.scale(value);
  }

  ink(id) {
    const colour = this.colour(id);
    if (!colour) return null;
    const [r, g, b] = colour.startsWith("#")
      ? [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16))
      : colour.match(/\d+/g).map(Number);
    return 0.3 * r + 0.59 * g + 0.11 * b > 140 ? "#111" : "#fff";
  }

  text(id) {
    const value = this.overlay.all.get(id);
    return this.overlay.kind === "change" && value === "same" ? "" : numberText(value, this.overlay.unit);
  }

  showLegend(pane) {
    const { overlay } = this;
    const parts = [element("strong", {}, overlay.title)];
    if (overlay.kind === "number") {
      const ramp = element("canvas", { width: 180, height: 10, class: "ramp" });
      const context = ramp.getContext("2d");
      for (let x = 0; x < 180; x += 1) {
        context.fillStyle = this.scale(this.low + ((this.high - this.low) * x) / 179);
        context.fillRect(x, 0, 1, 10);
      }
      parts.push(ramp, element("div", { class: "ends" }, element("span", {}, numberText(this.low, overlay.unit)), element("span", {}, numberText(this.high, overlay.unit))));
      parts.push(element("small", {}, overlay.aggregate === "max" ? "folded modules: the largest inside" : "folded modules: the sum"));
    } else {
      for (const [word, colour] of this.legend.slice(0, 12)) {
        const chip = element("span", { class: "chip" });
        chip.style.background = colour;
        parts.push(element("div", {}, chip, printable(word.slice(0, 80))));
      }
      if (this.legend.length > 12) parts.push(element("small", {}, `and ${this.legend.length - 12} more`));
    }
    const without = this.model.count - overlay.values.length;
    if (without) parts.push(element("small", {}, without === 1 ? "1 node has no value" : `${without.toLocaleString("en")} nodes have no value`));
    if (overlay.unmatched) parts.push(element("small", {}, overlay.unmatched === 1 ? "1 row of the table names no node" : `${overlay.unmatched} rows of the table name no node`));
    pane.replaceChildren(...parts);
  }
}
